"""examples/contrastive.py: SimCLR trains as on one device, also where some replicas have no rows."""

import numpy as np
import pytest

import contrastive


def test_a_loss_of_two_images_is_that_of_its_definition():
    """NT-Xent (Chen et al. 2020, equation 1) of two images whose first views are x and y, and whose second are x and -x."""
    first, second = np.array([[1, 0], [0, 1]], np.float32), np.array([[1, 0], [-1, 0]], np.float32)
    views, partner = np.concatenate([first, second]), [2, 3, 0, 1]
    alike = np.exp(views @ views.T / 0.2)
    of_views = [-np.log(alike[i, partner[i]] / (alike[i].sum() - alike[i, i])) for i in range(4)]
    found = contrastive.losses_of(np.arange(2), first, second)
    np.testing.assert_allclose(found, [(of_views[0] + of_views[2]) / 2, (of_views[1] + of_views[3]) / 2], atol=1e-5)


@pytest.mark.long
@pytest.mark.both_ways
def test_it_trains_as_on_one_device():
    """The last of two batches has one image, so two of three replicas have none."""
    alone = contrastive.train(1, epochs=2, num_images=17)
    np.testing.assert_allclose(contrastive.train(3, epochs=2, num_images=17), alone, rtol=1e-4)
    assert alone[1] < alone[0]
