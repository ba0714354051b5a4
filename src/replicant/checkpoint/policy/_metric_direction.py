"""Whether more or less of a metric is better, if its name says so."""

import re
from typing import Literal

from ...errors import ArgumentError

Mode = Literal["min", "max"]

# The names of Keras's metrics and losses and their usual short forms, by the direction that Keras gives them.
_DOWN = """
    loss error error_rate mean_squared_error mse root_mean_squared_error rmse mean_absolute_error mae
    mean_absolute_percentage_error mape mean_squared_logarithmic_error msle log_cosh logcosh hinge squared_hinge categorical_hinge
    kl_divergence kullback_leibler_divergence kld poisson crossentropy cross_entropy binary_crossentropy categorical_crossentropy
    sparse_categorical_crossentropy huber perplexity word_error_rate wer character_error_rate cer
    negative_log_likelihood nll false_positives false_negatives
"""
_UP = """
    accuracy acc auc precision recall sensitivity specificity precision_at_recall recall_at_precision sensitivity_at_specificity
    specificity_at_sensitivity f1 f1_score fbeta_score fmeasure iou io_u mean_io_u mean_iou cosine_similarity r2 r2_score
    pearson_correlation concordance_correlation log_likelihood true_positives true_negatives
"""
_KNOWN: dict[str, Mode] = {**dict.fromkeys(_DOWN.split(), "min"), **dict.fromkeys(_UP.split(), "max")}
_TURNS = {"neg", "negative", "minus", "inverse", "inv"}  # words that reverse the meaning of what follows


def direction_of(name: str) -> Mode:
    """Return whether a low or a high value of the metric `name` is better.

    Only the end of the name counts, so "val_accuracy", "head_accuracy" and "accuracy_1" are accuracies, as in Keras's logs.

    Raises:
        ArgumentError: If the name is not that of one of Keras's metrics, or contradicts itself.

    >>> direction_of("val_loss"), direction_of("head_accuracy"), direction_of("auc_2")
    ('min', 'max', 'max')
    """
    words = re.sub(r"_\d+$", "", name.lower().replace("-", "_")).split("_")
    start = next((i for i in range(len(words)) if "_".join(words[i:]) in _KNOWN), None)
    if start is not None:
        found = _KNOWN["_".join(words[start:])]
        before = words[:start]
        if not _TURNS.intersection(before) and all(_KNOWN.get(word, found) == found for word in before):
            return found
    raise ArgumentError(
        f"best_metric={name!r}: the name does not say whether more or less is better. Pass best_mode='max' if the checkpoint with "
        "the highest value is the best, or best_mode='min' if it is the one with the lowest."
    )


def checked_mode(best_metric: str | None, best_mode: Literal["auto", "min", "max"]) -> Mode | None:
    """Return the mode by which the metric `best_metric` is compared; None if there is no such metric.

    Raises:
        ArgumentError: If there is a mode without a metric, or the name of the metric does not say which is meant.
    """
    if best_mode not in ("auto", "min", "max"):
        raise ArgumentError(f"best_mode must be 'auto', 'min' or 'max'. Received: {best_mode!r}.")
    if best_metric is None:
        if best_mode != "auto":
            raise ArgumentError(f"best_mode={best_mode!r} says how best_metric is compared: pass best_metric too.")
        return None
    return direction_of(best_metric) if best_mode == "auto" else best_mode
