"""`magnetar produce`: send texts and files to a topic, with the options of `pulsar-client produce`.

The client is loaded when the command runs: other commands shall start without it.
"""

from typing import Annotated

import typer

from ...protocol.errors import InvalidConfiguration
from .addresses import ListenerName, ServiceUrl, client_options, service_url_of, unkept_notice
from .failures import clear_errors, errors

ProduceTopic = Annotated[str, typer.Argument(help="The topic, in any form of its name.")]
ProduceMessages = Annotated[
    list[str] | None,
    typer.Option("-m", "--messages", help="Text to send, several with the separator. Repeat the option for more."),
]
ProduceFiles = Annotated[
    list[str] | None,
    typer.Option("-f", "--files", help="Files to send, one message each, with commas. - is the standard input."),
]
ProduceTimes = Annotated[int, typer.Option("-n", "--num-produce", min=1, help="How often to send all of it.")]
ProduceRate = Annotated[
    float, typer.Option("-r", "--rate", min=0, help="Messages per second; 0 = as fast as possible.")
]
ProduceNoBatches = Annotated[
    bool, typer.Option("-db", "--disable-batching", help="Send each message in an entry of its own.")
]
ProduceChunking = Annotated[bool, typer.Option("-c", "--chunking", help="Send messages that are too large in chunks.")]
ProduceSeparator = Annotated[
    str, typer.Option("-s", "--separator", help="What separates the texts; '' sends each as it is.")
]
ProduceProperties = Annotated[
    list[str] | None,
    typer.Option("-p", "--properties", metavar="NAME=VALUE,…", help="Properties of each message."),
]
ProduceKey = Annotated[str | None, typer.Option("-k", "--key", help="Key of each message.")]
ProduceValueSchema = Annotated[
    str, typer.Option("-vs", "--value-schema", help="bytes, string, avro:DEFINITION or json:DEFINITION.")
]
ProduceKeySchema = Annotated[
    str, typer.Option("-ks", "--key-schema", help="The same of the key, with --key-value-encoding-type.")
]
ProduceEncoding = Annotated[
    str | None,
    typer.Option(
        "-kvet", "--key-value-encoding-type", help="separated or inline: send pairs of key and value.", metavar="TYPE"
    ),
]
ProduceKeyName = Annotated[
    str | None, typer.Option("-ekn", "--encryption-key-name", help="Name of the key to encrypt with.")
]
ProducePublicKey = Annotated[
    str | None, typer.Option("-ekv", "--encryption-key-value", help="Path or URI of that public key.", metavar="URI")
]


def produce(
    context: typer.Context,
    topic: ProduceTopic,
    messages: ProduceMessages = None,
    files: ProduceFiles = None,
    times: ProduceTimes = 1,
    rate: ProduceRate = 0.0,
    no_batches: ProduceNoBatches = False,
    chunking: ProduceChunking = False,
    separator: ProduceSeparator = ",",
    properties: ProduceProperties = None,
    key: ProduceKey = None,
    value_schema: ProduceValueSchema = "bytes",
    key_schema: ProduceKeySchema = "string",
    encoding: ProduceEncoding = None,
    key_name: ProduceKeyName = None,
    public_key: ProducePublicKey = None,
    service_url: ServiceUrl = None,
    listener_name: ListenerName = None,
) -> None:
    """Send messages to a topic."""
    with clear_errors():
        import uvloop

        from .keys import GivenKey
        from .sending import Contents, Sending, payloads, properties_of, schema_of, send

        if not messages and not files:
            raise InvalidConfiguration("there is nothing to send: pass --messages or --files")
        if (key_name is None) != (public_key is None):
            raise InvalidConfiguration("pass both --encryption-key-name and --encryption-key-value, or neither")
        contents = Contents(
            payloads(messages or (), files or (), separator, value_schema),
            key.encode() if key is not None else None,
            properties_of(properties or ()),
            schema_of(value_schema, key_schema, encoding),
            pairs=encoding is not None,
        )
        options: dict[str, object] = {"batching_enabled": not (no_batches or chunking), "chunking_enabled": chunking}
        if public_key is not None:
            options |= {"encryption_key": key_name, "crypto_key_reader": GivenKey(public_key)}
        sending = Sending(topic, contents, times, rate, options)
        found = client_options(context, listener_name, service_url)
        uvloop.run(send(service_url_of(context, service_url), sending, found))
        notice = unkept_notice(context, service_url, topic)
        if notice:
            errors.print(notice, highlight=False, soft_wrap=True)
