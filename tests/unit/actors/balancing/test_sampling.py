"""A broker's load report, from counters that only grow."""

import pytest

from magnetar.actors.balancing.sampling import LoadSampler, TopicCounts
from magnetar.protocol.load_figures import Rates


def topic(name: str, count: int, epoch: int = 1) -> tuple[str, int, TopicCounts]:
    return f"persistent://public/default/{name}", epoch, TopicCounts(count, count, 100 * count, 0, 0, 0)


def test_only_topics_that_moved_data_are_named_and_the_heaviest_come_first() -> None:
    sampler = LoadSampler(0.0, 0.0)
    for number in range(5):
        sampler.look(*topic(f"t{number}", 0))
    assert sampler.report(5.0, 0.0).heaviest == []
    for number in range(5):
        sampler.look(*topic(f"t{number}", 10 * number))
    report = sampler.report(10.0, 1.0)
    assert [one.unit.rpartition("/")[2] for one in report.heaviest] == ["t4", "t3", "t2", "t1"]
    assert report.heaviest[0].rates == Rates(8.0, 8.0, 800.0)
    assert report.topics == 4 and report.rest == Rates()
    assert report.interval_s == 5.0 and report.cpu == pytest.approx(0.2)


def test_what_is_not_among_the_heaviest_is_a_sum() -> None:
    sampler = LoadSampler(0.0, 0.0, limit=2)
    for number in range(5):
        sampler.look(*topic(f"t{number}", 0))
    sampler.report(1.0, 0.0)
    for number in range(5):
        sampler.look(*topic(f"t{number}", number))
    report = sampler.report(2.0, 0.0)
    assert [one.rates.messages_in for one in report.heaviest] == [4.0, 3.0]
    assert report.rest.messages_in == 3.0 and report.rest.bytes_in == 300.0


def test_a_topic_counts_from_its_second_sample_under_one_epoch() -> None:
    sampler = LoadSampler(0.0, 0.0)
    sampler.look(*topic("t", 1000))
    assert sampler.report(1.0, 0.0).topics == 0
    sampler.look(*topic("t", 2000, epoch=2))
    assert sampler.report(2.0, 0.0).topics == 0
    sampler.look(*topic("t", 2001, epoch=2))
    assert sampler.report(3.0, 0.0).heaviest[0].rates.messages_in == 1.0
    sampler.report(4.0, 0.0)
    sampler.look(*topic("t", 9000, epoch=2))
    assert sampler.report(5.0, 0.0).topics == 0, "it was unloaded in between"


def test_a_counter_that_falls_is_no_negative_rate() -> None:
    sampler = LoadSampler(0.0, 0.0)
    sampler.look(*topic("t", 1000))
    sampler.report(1.0, 0.0)
    sampler.look(*topic("t", 900))
    assert sampler.report(2.0, 0.0).heaviest[0].rates == Rates()


def test_the_topic_of_a_health_check_is_never_named() -> None:
    sampler = LoadSampler(0.0, 0.0)
    name = "persistent://pulsar/localhost:6650/heartbeat"
    for count in (0, 50):
        sampler.look(name, 1, TopicCounts(count, count, 0, 0, 0, 0))
        report = sampler.report(float(count + 1), 0.0)
    assert report.heaviest == [] and report.rest.entries_in > 0


def test_a_topic_that_is_looked_at_twice_before_a_report_counts_once() -> None:
    sampler = LoadSampler(0.0, 0.0)
    sampler.look(*topic("t", 0))
    sampler.report(1.0, 0.0)
    sampler.look(*topic("t", 10))
    sampler.look(*topic("t", 15))
    assert sampler.report(2.0, 0.0).heaviest[0].rates.messages_in == 15.0
