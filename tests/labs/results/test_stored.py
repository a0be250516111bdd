"""What the stored race of THOR counts: updates to an accuracy, and their mean."""

from labkit.labs.results import mean_steps, steps_to


def point(update, accuracy):
    return {"update": update, "accuracy": accuracy, "loss": 0.5, "training_loss": 0.25}


def test_steps_to_is_the_first_point_and_a_mean_needs_every_training():
    curve = [point(39, 0.97), point(78, 0.985), point(117, 0.98), point(156, 0.99)]
    assert [steps_to(curve, target) for target in (0.5, 0.98, 0.985, 0.99)] == [39, 78, 78, 156]
    assert steps_to(curve, 0.991) is None and steps_to([], 0.5) is None
    assert steps_to([{"update": 1, "accuracy": None}, *curve], 0.5) == 39
    assert mean_steps([312, 351, 351]) == 338
    assert mean_steps([312, None, 351]) is None and mean_steps([]) is None
