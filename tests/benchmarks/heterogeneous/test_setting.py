"""What may be asked for, and the sentence that says why not."""

from __future__ import annotations

import pytest

from benchmarks.command import InvalidSetting
from benchmarks.heterogeneous.setting import Setting, parse_numbers, parse_systems
from benchmarks.heterogeneous.systems import NAMES
from benchmarks.heterogeneous.workload import manifest_of, run_toml


def test_rates_and_the_time_of_an_epoch() -> None:
    setting = Setting(speeds=(1.0, 0.5), links=(100.0, 0.0), target=120)
    assert setting.rates == (40.0, 20.0)
    assert setting.epoch_seconds == 2.0


def test_the_slowest_link_is_of_the_slower_device_and_unlimited_is_fast() -> None:
    assert Setting(speeds=(1, 1, 0.5), links=(0, 5, 5)).slowest_link == 2
    assert Setting(speeds=(1, 1, 0.5), links=(0, 5, 6)).slowest_mbits == 5


def test_quotas_sum_to_the_target_in_proportion_to_speed() -> None:
    setting = Setting(speeds=(1, 1, 0.6, 0.15), links=(1, 1, 1, 1), target=512)
    assert setting.quotas((0, 1, 2, 3)) == (186, 186, 112, 28)
    assert sum(setting.quotas((0, 2))) == 512


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"speeds": (1, 1), "links": (5,)}, "2 speeds and 1 links"),
        ({"speeds": (1,), "links": (5,)}, "1 peers cannot be compared"),
        ({"speeds": (1, 0), "links": (5, 5)}, "not a positive number"),
        ({"speeds": (1, float("nan")), "links": (5, 5)}, "not a positive number"),
        ({"speeds": (1, 1), "links": (5, -1)}, "negative"),
        ({"speeds": (1, 1), "links": (5, float("inf"))}, "Mbit/s"),
        ({"speeds": (1, 1), "links": (5, 5), "target": 1}, "larger --target"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict, words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        Setting(**wrong)


def test_lists_on_the_command_line() -> None:
    assert parse_numbers("1,0.15", "--speeds") == (1.0, 0.15)
    with pytest.raises(InvalidSetting, match="--links"):
        parse_numbers("1,fast", "--links")
    assert parse_systems("minga, ddp,minga", NAMES) == ("minga", "ddp")
    with pytest.raises(InvalidSetting, match="hivemind"):
        parse_systems("minga,horovod", NAMES)


def test_all_systems_train_the_same_run() -> None:
    setting = Setting(target=256)
    manifest = manifest_of(setting)
    assert manifest.training.target_batch_size == 256
    assert manifest.model.preset == "micro"
    assert "overlap = 0" in run_toml(setting, exact=True)
    assert "overlap" not in run_toml(setting, exact=False)
