//! The handwritten digits (see `DATA.md`), split once for all, and the order of the batches.

use crate::random::Random;

/// Pixels of an image.
pub const PIXELS: usize = 64;
/// The digits 0 to 9.
pub const CLASSES: usize = 10;

/// Images kept for the test.
const TEST_IMAGES: usize = 360;
/// The split is the same whatever the seed of the training, so that accuracies compare.
const SPLIT_SEED: u64 = 1998;
/// The value of a black pixel.
const BLACK: f32 = 16.0;

static IMAGES: &[u8] = include_bytes!("digits.bin");

/// Images and what they show, as a network takes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// `[images, PIXELS]`, each 0 to 1.
    pub inputs: Vec<f32>,
    /// `[images, CLASSES]`: 1 at the digit shown, else 0.
    pub targets: Vec<f32>,
}

impl Batch {
    fn push(&mut self, image: &Image) {
        let (pixels, digit) = (&image[..PIXELS], image[PIXELS]);
        self.inputs.extend(pixels.iter().map(|&pixel| f32::from(pixel) / BLACK));
        self.targets.extend((0..CLASSES).map(|class| if class == usize::from(digit) { 1.0 } else { 0.0 }));
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.targets.len() / CLASSES
    }
}

impl<'a> FromIterator<&'a Image> for Batch {
    fn from_iter<I: IntoIterator<Item = &'a Image>>(images: I) -> Self {
        let mut batch = Batch::default();
        images.into_iter().for_each(|image| batch.push(image));
        batch
    }
}

/// A record of the file: the pixels and the digit.
type Image = [u8; PIXELS + 1];

/// The images to learn from and those to be tested with.
pub struct Digits {
    training: Vec<Image>,
    test: Vec<Image>,
}

impl Digits {
    /// All of them, split the same way each time.
    pub fn load() -> Self {
        let (images, _) = IMAGES.as_chunks();
        let mut training = images.to_vec();
        Random::new(SPLIT_SEED, 0).shuffle(&mut training);
        let test = training.split_off(training.len() - TEST_IMAGES);
        Digits { training, test }
    }

    /// The test images in one batch.
    pub fn test(&self) -> Batch {
        self.test.iter().collect()
    }

    /// Endless batches of `size` training images: all of them in a random order, then all of
    /// them in another, and so on.
    pub fn batches(&self, size: usize, mut random: Random) -> impl Iterator<Item = Batch> {
        let mut images = std::iter::repeat_with(move || self.in_random_order(&mut random)).flatten();
        std::iter::repeat_with(move || images.by_ref().take(size).collect())
    }

    fn in_random_order(&self, random: &mut Random) -> Vec<&Image> {
        let mut images: Vec<_> = self.training.iter().collect();
        random.shuffle(&mut images);
        images
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_in_the_training_or_in_the_test() {
        let digits = Digits::load();
        assert_eq!((digits.training.len(), digits.test.len()), (1437, 360));
        let mut together = [digits.training, digits.test].concat();
        together.sort();
        let mut all = IMAGES.as_chunks::<{ PIXELS + 1 }>().0.to_vec();
        all.sort();
        assert_eq!(together, all);
    }

    #[test]
    fn pixels_go_from_0_to_1_and_one_target_is_1() {
        let test = Digits::load().test();
        assert_eq!(test.len(), 360);
        assert!(test.inputs.iter().all(|x| (0.0..=1.0).contains(x)));
        for targets in test.targets.chunks(CLASSES) {
            assert_eq!(targets.iter().sum::<f32>(), 1.0);
            assert!(targets.iter().all(|&x| x == 0.0 || x == 1.0));
        }
    }

    #[test]
    fn the_batches_go_through_all_images_before_any_comes_again() {
        let digits = Digits::load();
        let mut batches = digits.batches(1437, Random::new(1, 0));
        let (first, second) = (batches.next().unwrap(), batches.next().unwrap());
        let sorted = |batch: &Batch| {
            let mut images: Vec<_> = batch.inputs.chunks(PIXELS).map(<[f32]>::to_vec).collect();
            images.sort_by(|a, b| a.partial_cmp(b).unwrap());
            images
        };
        assert_ne!(first, second);
        assert_eq!(sorted(&first), sorted(&second));
    }
}
