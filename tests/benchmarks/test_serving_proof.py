"""The proof counts each score that is not the named manifest's, to the last bit."""

import numpy as np

from benchmarks.serving_proof import Answer, changed_scores, wrong_scores


def test_a_last_bit_is_counted() -> None:
    scores = {
        1: np.array([0.25, 0.5, 0.75], np.float32),
        2: np.array([0.25, 0.5, 0.125], np.float32),
    }
    places = np.array([2, 0, 2])
    answers = [Answer(number=n, places=places, scores=scores[n][places]) for n in (1, 2)]
    assert wrong_scores(answers, scores) == 0
    near = answers[0].scores.copy()
    near[1] = np.nextafter(near[1], np.float32(1))
    mixed = np.append(scores[1][places][:2], scores[2][2])  # rows of two manifests
    wrong = [Answer(number=1, places=places, scores=each) for each in (near, mixed)]
    assert wrong_scores([*answers, *wrong], scores) == 2
    assert changed_scores(scores) == 0.3333
