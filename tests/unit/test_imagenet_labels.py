import collections
import hashlib

from data_prep.sources import imagenet_labels


def sha256(lines) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def test_the_classes_are_the_published_ones():
    synsets, words = imagenet_labels.synsets(), imagenet_labels.words()
    assert len(synsets) == len(words) == imagenet_labels.NUM_CLASSES == 1000
    assert (synsets[0], words[0]) == ("n01440764", "tench, Tinca tinca")
    assert (synsets[-1], words[-1]) == (
        "n15075141",
        "toilet tissue, toilet paper, bathroom tissue",
    )
    assert list(synsets) == sorted(set(synsets))
    # Of the LOC_synset_mapping.txt that comes with the images.
    assert sha256(map(" ".join, zip(synsets, words, strict=True))) == (
        "acf75ef0abe89694b19056e0796401068b459c457baa30335f240c7692857355"
    )


def test_the_labels_of_the_validation_images_are_the_published_ones():
    labels = imagenet_labels.validation_synsets()
    assert labels[:3] == ("n01751748", "n09193705", "n02105855")
    assert labels[-2:] == ("n10148035", "n02437616")
    assert len(labels) == imagenet_labels.NUM_VALIDATION == 50_000
    counts = collections.Counter(labels)
    assert set(counts) == set(imagenet_labels.synsets())
    assert set(counts.values()) == {50}
    # Of tensorflow/models' imagenet_2012_validation_synset_labels.txt.
    assert sha256(labels) == (
        "313fc3f23c864dde9183c9a368809065765dd1b657a6904fded44e3e46d34604"
    )


def test_a_data_set_of_known_classes_is_described():
    assert imagenet_labels.describe(("n01443537", "n01440764")) == (
        "goldfish, Carassius auratus",
        "tench, Tinca tinca",
    )
    assert imagenet_labels.describe(("n01443537", "cat")) == ()
    assert imagenet_labels.describe(()) == ()
