"""Generate `protocol/pulsar_pb2.py` and `.pyi` from `protocol/pulsar.proto`.

    python tests/tools/generate_protocol.py [--output DIRECTORY]

Without `--output` the committed files are replaced. The compiler is grpcio-tools' (extra `dev`).

The compiler pins generated code to its own protobuf release: the module then refuses any older runtime. This code
needs nothing newer than editions (protobuf 5.27), and `pyproject.toml` states the range that is supported, so that
check and the line naming the compiler are left out. It also keeps the output the same between compiler releases.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "magnetar/protocol/pulsar.proto"

_RUNTIME_CHECK = re.compile(
    r"^# Protobuf Python Version:.*\n"
    r"|^from google\.protobuf import runtime_version as _runtime_version\n"
    r"|^_runtime_version\.ValidateProtobufRuntimeVersion\([^)]*\)\n",
    re.MULTILINE,
)


def generate(output: Path) -> list[Path]:
    """Compile the protocol into `output` and return the files written; RuntimeError if the compiler refuses it."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as scratch:
        source, compiled = Path(scratch, "source"), Path(scratch, "compiled")
        (source / NAME).parent.mkdir(parents=True)
        compiled.mkdir()
        (source / NAME).write_bytes((ROOT / "protocol" / "pulsar.proto").read_bytes())
        arguments = ["protoc", f"-I{source}", f"--python_out={compiled}", f"--pyi_out={compiled}", NAME]
        if protoc.main(arguments) != 0:
            raise RuntimeError("protoc refused protocol/pulsar.proto")
        written: list[Path] = []
        for made in sorted((compiled / NAME).parent.iterdir()):
            target = output / made.name
            target.write_text(_RUNTIME_CHECK.sub("", made.read_text()))
            written.append(target)
        return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Generate the protobuf module of the wire protocol.")
    parser.add_argument("--output", type=Path, default=ROOT / "protocol")
    for path in generate(parser.parse_args().output):
        sys.stdout.write(f"{path}\n")
