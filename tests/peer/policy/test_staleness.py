from __future__ import annotations

from peer.policy.staleness import weight_of_age


def test_gradients_of_the_present_weights_or_those_before_count_in_full() -> None:
    assert weight_of_age(0) == weight_of_age(1) == 1.0


def test_older_ones_are_divided_by_their_age() -> None:
    assert [weight_of_age(epochs) for epochs in (2, 4, 12)] == [1 / 2, 1 / 4, 1 / 12]


def test_weights_that_seem_newer_than_the_epoch_give_no_gradient_more_than_its_weight() -> None:
    assert weight_of_age(-3) == 1.0
