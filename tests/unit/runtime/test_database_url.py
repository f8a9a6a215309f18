"""URLs of metadata stores: what is refused, and that no password is ever shown."""

import pytest

from magnetar.protocol.errors import SettingError
from magnetar.runtime.database_url import is_same_place, masked, parse_url, shown_url

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://u:s3cret@h:1/d", "postgresql://u@h:1/d"),
        ("postgresql://u:a,s3cret/b@h/d", "postgresql://u@h/d"),
        ("postgresql://u@/d?host=%2Frun&password=s3cret", "postgresql://u@/d?host=%2Frun"),
        ("postgresql://u@h/d?sslkey=k&sslpassword=s3cret", "postgresql://u@h/d?sslkey=k"),
        (
            "postgresql://u:s3cret@a,b:2/d",
            "postgresql://u@/d?host=a%2Cb&port=5432%2C2&target_session_attrs=read-write",
        ),
        ("sqlite:////d/metadata.db", "sqlite:////d/metadata.db"),
    ],
)
def test_a_url_is_shown_without_its_password(given: str, shown: str) -> None:
    assert shown_url(given) == shown_url(parse_url(given)) == shown


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://u:s3cret@x@h/d",
        "postgresql://u:a@s3cret:b@h/d",
        "postgresql://u:x@h:s3cret@5432/d",
        "u:s3cret@h/d",
        "host=h password=s3cret user=u",
        "host=h PASSWORD = 's3cret with s3cret'",
        "postgresql://h:x/d?password=s3cret",
        "mysql://u:s3cret@h/d",
        "sqlite://u:s3cret@h/d",
        "s3cret@",
    ],
)
def test_what_is_no_url_is_refused_without_its_password(given: str) -> None:
    with pytest.raises(SettingError) as refused:
        parse_url(given)
    assert SECRET not in str(refused.value) and SECRET not in repr(refused.value)
    assert SECRET not in masked(given)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("postgresql://u:other@h/d?sslmode=require", True),
        ("postgresql://v:s3cret@h/d", False),  # the table may be found in another schema
        ("postgresql://u:s3cret@i/d", False),
        ("postgresql://u:s3cret@h:5433/d", False),
        ("postgresql://u:s3cret@h/e", False),
        ("postgresql://u:s3cret@h/d?options=-csearch_path%3Dx", False),
    ],
)
def test_only_a_password_or_encryption_may_differ_in_the_same_place(other: str, same: bool) -> None:
    assert is_same_place("postgresql://u:s3cret@h/d", other) == same
