"""Cookies: a wiped, foreign, copied or partly lost disk never rejoins unnoticed."""

import dataclasses
import json

import pytest

from magnetar.protocol.errors import CookieMismatch, FormatTooNew, MetadataUnavailable
from magnetar.runtime.rpc.messages import pack
from magnetar.storage.bookie.checkpoint import Checkpoint
from magnetar.storage.bookie.cookie import claim_directory, read_cookie
from magnetar.storage.bookie.replay import format_directory
from magnetar.storage.metadata import keys as metadata_keys
from support.files.faulty_files import FaultyFiles
from support.stores.bookie_kit import make_env
from support.stores.memory_store import MemoryMetadataStore

DIRECTORY = "/data/bookie-1"


@pytest.fixture
def metadata():
    return MemoryMetadataStore()


async def claim(files, metadata, *, bookie="bookie-1", cluster="c", directory=DIRECTORY, seed=0, **options):
    return await claim_directory(make_env(files, seed), directory, bookie, cluster, metadata, **options)


def checkpoint(files):
    return Checkpoint.decode(files.read_bytes(f"{DIRECTORY}/checkpoint"))


async def test_a_new_bookie_gets_a_cookie_and_keeps_it(files, metadata):
    cookie = await claim(files, metadata)
    assert (cookie.id, cookie.cluster_id) == ("bookie-1", "c") and len(cookie.instance) == 32
    assert await claim(files, metadata, seed=1) == cookie == read_cookie(files, DIRECTORY)
    assert checkpoint(files).instance == cookie.instance and not checkpoint(files).limbo
    assert await metadata.get(metadata_keys.bookie("bookie-1")) is not None


@pytest.mark.parametrize("other", [{"bookie": "bookie-2"}, {"cluster": "d"}])
async def test_a_foreign_directory_is_refused(files, metadata, other):
    await claim(files, metadata)
    with pytest.raises(CookieMismatch, match="belongs to"):
        await claim(files, metadata, **other)


async def test_a_lost_disk_is_refused_and_on_request_started_empty_in_limbo(files, metadata):
    cookie = await claim(files, metadata)
    empty = FaultyFiles()
    with pytest.raises(CookieMismatch, match="lost its disk"):
        await claim(empty, metadata, seed=1)
    again = await claim(empty, metadata, seed=1, accept_lost_disk=True)
    assert again.instance != cookie.instance and checkpoint(empty).limbo
    with pytest.raises(CookieMismatch, match="not the disk"):
        await claim(files, metadata)
    assert await claim(empty, metadata, accept_lost_disk=True) == again


async def test_an_accepted_loss_is_that_of_one_disk_and_not_of_the_next(files, metadata):
    first = await claim(files, metadata)
    with pytest.raises(CookieMismatch, match="lost its disk"):
        await claim(FaultyFiles(), metadata, seed=1, lost_instance="another")
    second = FaultyFiles()
    cookie = await claim(second, metadata, seed=1, lost_instance=first.instance)
    assert checkpoint(second).limbo and cookie.instance != first.instance
    assert await claim(second, metadata, seed=2, lost_instance=first.instance) == cookie
    with pytest.raises(CookieMismatch, match="lost its disk"):  # wiped again, and nobody has said anything to that
        await claim(FaultyFiles(), metadata, seed=3, lost_instance=first.instance)


async def test_data_that_the_metadata_does_not_know_is_refused(files, metadata):
    await claim(files, metadata)
    files.open(f"{DIRECTORY}/0000000000000001.journal", create=True)
    with pytest.raises(CookieMismatch, match="does not know"):
        await claim(files, MemoryMetadataStore())


async def test_an_interrupted_first_start_is_finished(files, metadata):
    class Away(MemoryMetadataStore):
        async def put(self, key, value, expected_version):
            raise MetadataUnavailable("away")

    with pytest.raises(MetadataUnavailable):
        await claim(files, Away())
    cookie = read_cookie(files, DIRECTORY)
    assert await claim(files, metadata, seed=1) == cookie


async def test_a_first_start_may_be_cut_off_anywhere_and_is_repeated():
    """Between the store and its cookie the directory used to be refused permanently."""
    cut_off = 0
    for step in range(1, 40):
        disk, records = FaultyFiles(step), MemoryMetadataStore()
        disk.power_off_after(step)
        try:
            await claim(disk, records)
        except OSError:
            cut_off += 1
            disk.crash()
            await claim(disk, records, seed=1)
        again = await claim(disk, records, seed=2)
        assert again == read_cookie(disk, DIRECTORY) and checkpoint(disk).instance == again.instance
        assert not checkpoint(disk).limbo
    assert 5 < cut_off < 35


async def test_an_accepted_loss_that_is_cut_off_is_repeated_only_when_accepted_again():
    cut_off = 0
    for step in range(1, 40):
        records = MemoryMetadataStore()
        await claim(FaultyFiles(), records)
        disk = FaultyFiles(step)
        disk.power_off_after(step)
        try:
            await claim(disk, records, seed=1, accept_lost_disk=True)
        except OSError:
            cut_off += 1
            disk.crash()
            with pytest.raises(CookieMismatch, match=r"lost its disk|not the disk"):
                await claim(disk, records, seed=2)
            await claim(disk, records, seed=2, accept_lost_disk=True)
        again = await claim(disk, records, seed=3)
        assert checkpoint(disk).limbo and checkpoint(disk).instance == again.instance
    assert 5 < cut_off < 35


async def test_an_unused_store_of_a_known_bookie_is_a_lost_disk(files, metadata):
    """All that is left of a bookie that stored entries and was never asked for a checkpoint."""
    await claim(files, metadata)
    files.remove(f"{DIRECTORY}/cookie")
    with pytest.raises(CookieMismatch, match="lost its disk"):
        await claim(files, metadata, seed=1)
    await claim(files, metadata, seed=1, accept_lost_disk=True)
    assert checkpoint(files).limbo


@pytest.mark.parametrize("accept", [False, True])
@pytest.mark.parametrize("left", ["used checkpoint", "damaged checkpoint", "journal"])
async def test_a_part_of_a_store_without_a_cookie_is_refused(files, left, accept):
    if left == "journal":
        files.make_directory(DIRECTORY)
        files.open(f"{DIRECTORY}/0000000000000001.journal", create=True)
    else:
        format_directory(files, DIRECTORY, "an instance")
        content = files.read_bytes(f"{DIRECTORY}/checkpoint")
        used = dataclasses.replace(checkpoint(files), next_file_id=7).encode()
        files.write_atomic(f"{DIRECTORY}/checkpoint", used if left == "used checkpoint" else content[:-1])
    with pytest.raises(CookieMismatch, match="but no cookie"):
        await claim(files, MemoryMetadataStore(), accept_lost_disk=accept)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id": "bookie-1"}', b"\xff\xfe", b"[" * 50_000])
async def test_an_unreadable_cookie_is_refused(files, metadata, content):
    await claim(files, metadata)
    files.write_atomic(f"{DIRECTORY}/cookie", content)
    with pytest.raises(CookieMismatch):
        await claim(files, metadata)


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\xa2\xff\xff", b"\x05"])
async def test_an_unreadable_cookie_in_the_metadata_is_refused(files, metadata, content):
    await metadata.put(metadata_keys.bookie("bookie-1"), content, None)
    with pytest.raises(CookieMismatch, match="malformed"):
        await claim(files, metadata)


async def test_no_loss_is_accepted_unless_somebody_said_so(files, metadata):
    """Found by `tests/fuzz` (target records): an instance without a name was the one whose loss nobody had accepted."""
    record = {"id": "bookie-1", "cluster_id": "c", "instance": ""}
    await metadata.put(metadata_keys.bookie("bookie-1"), pack(record), None)
    with pytest.raises(CookieMismatch, match="lost its disk"):
        await claim(files, metadata)


async def test_two_bookies_of_one_name_cannot_both_register(files, metadata):
    class Raced(MemoryMetadataStore):
        async def get(self, key):
            return None

    raced = Raced(metadata.records)
    await claim(files, raced)
    with pytest.raises(CookieMismatch, match="same moment"):
        await claim(FaultyFiles(), raced, seed=1)


async def test_the_file_is_plain_json(files, metadata):
    cookie = await claim(files, metadata)
    assert json.loads(files.read_bytes(f"{DIRECTORY}/cookie")) == {
        "id": "bookie-1",
        "cluster_id": "c",
        "layout": 1,
        "instance": cookie.instance,
    }


async def test_a_start_that_ended_before_the_metadata_knew_the_accepted_disk_is_repeated(files, metadata):
    """Found by the simulator, seed 1128: the bookie could never start again."""
    await claim(files, metadata)
    empty = FaultyFiles()
    put = metadata.put

    async def fail(*arguments):
        raise MetadataUnavailable("away")

    metadata.put = fail
    with pytest.raises(MetadataUnavailable):
        await claim(empty, metadata, seed=1, accept_lost_disk=True)
    metadata.put = put
    with pytest.raises(CookieMismatch, match="not the disk"):
        await claim(empty, metadata, seed=2)
    again = await claim(empty, metadata, seed=2, accept_lost_disk=True)
    assert checkpoint(empty).limbo and checkpoint(empty).instance == again.instance
    assert await claim(empty, metadata) == again


@pytest.mark.promise("30.6")
async def test_a_directory_of_a_later_layout_is_refused_and_an_older_cookie_is_not(files, metadata):
    cookie = await claim(files, metadata)
    path = f"{DIRECTORY}/cookie"
    record = json.loads(files.read_bytes(path))
    files.write_atomic(path, json.dumps({**record, "layout": 2}).encode())
    with pytest.raises(FormatTooNew, match="layout 2"):
        await claim(files, metadata)
    for wrong in (0, "2", None, [1]):
        files.write_atomic(path, json.dumps({**record, "layout": wrong}).encode())
        with pytest.raises(CookieMismatch, match="is no layout"):
            await claim(files, metadata)
    del record["layout"]
    files.write_atomic(path, json.dumps(record).encode())
    assert await claim(files, metadata) == cookie
