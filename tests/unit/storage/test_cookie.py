"""Cookies: a wiped, foreign, copied or partly lost disk never rejoins unnoticed."""

import json

import pytest
from bookie_kit import make_env
from faulty_files import FaultyFiles

from magnetar.protocol import metadata_keys
from magnetar.protocol.errors import CookieMismatch, MetadataUnavailable
from magnetar.storage.checkpoint import Checkpoint
from magnetar.storage.cookie import claim_directory, read_cookie
from magnetar.storage.metadata_memory import MemoryMetadataStore

DIRECTORY = "/data/bookie-1"


@pytest.fixture
def files():
    return FaultyFiles()


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


async def test_a_lost_disk_is_refused_and_on_request_begun_anew_in_limbo(files, metadata):
    cookie = await claim(files, metadata)
    empty = FaultyFiles()
    with pytest.raises(CookieMismatch, match="lost its disk"):
        await claim(empty, metadata, seed=1)
    again = await claim(empty, metadata, seed=1, accept_lost_disk=True)
    assert again.instance != cookie.instance and checkpoint(empty).limbo
    with pytest.raises(CookieMismatch, match="not the disk"):
        await claim(files, metadata)
    assert await claim(empty, metadata, accept_lost_disk=True) == again


@pytest.mark.parametrize("accept", [False, True])
async def test_data_without_a_cookie_is_refused(files, metadata, accept):
    await claim(files, metadata)
    files.remove(f"{DIRECTORY}/cookie")
    with pytest.raises(CookieMismatch, match="without a cookie"):
        await claim(files, metadata, accept_lost_disk=accept)


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
    for step in range(1, 20):
        disk, records = FaultyFiles(step), MemoryMetadataStore()
        disk.power_off_after(step)
        try:
            await claim(disk, records)
        except OSError:
            disk.crash()
            try:
                await claim(disk, records)
            except CookieMismatch as error:  # a store without a cookie: nothing is lost, the operator clears it
                assert "without a cookie" in str(error) and disk.exists(f"{DIRECTORY}/checkpoint")


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
