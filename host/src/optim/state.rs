//! The state of an optimiser in a safetensors file.

use std::borrow::Cow;
use std::path::Path;

use safetensors::{Dtype, View};
use warpsmith_dsl::adamw::{HISTORY_WORDS, status};

use super::adamw::{AdamW, Parameter};
use super::options::AdamWOptions;
use crate::error::{Error, Result};
use crate::tensor::{Element, Tensor};
use crate::weights::Weights;

/// Numbers of a group's options.
const OPTIONS: usize = 6;

/// A tensor of the file.
struct Saved {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Saved {
    fn new<T: Element>(dtype: Dtype, shape: &[usize], elements: &[T]) -> Self {
        Self { dtype, shape: shape.to_vec(), bytes: bytemuck::cast_slice(elements).to_vec() }
    }

    fn f32(tensor: &Tensor<f32>) -> Result<Self> {
        Ok(Self::new(Dtype::F32, tensor.shape(), &tensor.to_vec()?))
    }
}

impl View for Saved {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// What a file has of weights.
struct Loaded {
    moments: [Vec<f32>; 2],
    master: Option<Vec<f32>>,
    history: [u32; HISTORY_WORDS],
}

/// Two words, the lower first.
fn f64_of(words: &[u32]) -> f64 {
    f64::from_bits(u64::from(words[0]) | u64::from(words[1]) << 32)
}

impl AdamW {
    /// Writes the state into a safetensors file: moments, copies in f32, step counts, options of the groups, the seed, the loss scale. The file is there as a whole
    /// or not at all. The weights are the model's, and saved with it.
    ///
    /// Of a tensor `name` it has `first_moment.name`, `second_moment.name`, `master.name` if there is a copy, `step.name`, `powers.name` (of both decay rates, to the
    /// power of the steps) and `place.name`, its number. A table of experts has two or three tensors; see [`add_with`](Self::add_with).
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be written, [`Error::Driver`] if reading the state, or work before it, failed.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let history = self.history_words()?;
        let mut entries = Vec::new();
        for (place, (parameter, words)) in
            self.parameters.iter().zip(history.chunks_exact(HISTORY_WORDS)).enumerate()
        {
            let mut add = |what: &str, saved| entries.push((format!("{what}.{}", parameter.name), saved));
            add("first_moment", Saved::f32(&parameter.moments[0])?);
            add("second_moment", Saved::f32(&parameter.moments[1])?);
            if let Some(master) = &parameter.master {
                add("master", Saved::f32(master)?);
            }
            add("step", Saved::new(Dtype::U32, &[1], &words[..1]));
            add("powers", Saved::new(Dtype::F64, &[2], &[f64_of(&words[2..]), f64_of(&words[4..])]));
            add("place", Saved::new(Dtype::U32, &[1], &[place as u32]));
        }
        let options: Vec<f64> = self.groups.iter().flat_map(numbers_of).collect();
        entries.push(("groups".into(), Saved::new(Dtype::F64, &[self.groups.len(), OPTIONS], &options)));
        let seed = [self.seed as u32, (self.seed >> 32) as u32];
        entries.push(("seed".into(), Saved::new(Dtype::U32, &[2], &seed)));
        if self.loss_scale.is_some() {
            let words = self.status.to_vec()?;
            entries.push(("loss_scale".into(), Saved::new(Dtype::F32, &[1], &words[status::SCALE..][..1])));
            let good = [words[status::GOOD_STEPS].to_bits()];
            entries.push(("good_steps".into(), Saved::new(Dtype::U32, &[1], &good)));
        }
        let failed = |source| Error::Io { operation: "writing", path: path.to_owned(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let file =
            tempfile::NamedTempFile::new_in(folder.unwrap_or_else(|| Path::new("."))).map_err(failed)?;
        safetensors::serialize_to_file(entries, None, file.path())
            .map_err(|error| failed(std::io::Error::other(error)))?;
        file.persist(path).map(drop).map_err(|error| failed(error.error))
    }

    /// Takes the state from a file that [`save`](Self::save) has written, of an optimiser with the same weights and as many groups. With the weights as they were
    /// then, the steps that follow have the same bits.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be read, [`Error::Weights`] if it is damaged, lacks what is needed, or has weights that are rounded randomly in another place;
    /// [`Error::Argument`] if an option in it is out of its range. Nothing has changed then. [`Error::Driver`] if writing the state failed.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let file = Weights::load(path)?;
        let groups = self.load_groups(&file)?;
        let [low, high] = of_shape::<u32, 2>(&file, "seed")?.map(u64::from);
        let scale = match self.loss_scale {
            Some(_) => {
                let [scale] = of_shape::<f32, 1>(&file, "loss_scale")?;
                let [good] = of_shape::<u32, 1>(&file, "good_steps")?;
                if !(scale > 0.0 && scale.is_finite()) {
                    return Err(unfit(path, "loss_scale", "a finite number above 0", &scale.to_string()));
                }
                Some([scale, f32::from_bits(good)])
            }
            None => None,
        };
        let mut all = Vec::with_capacity(self.parameters.len());
        for (place, parameter) in self.parameters.iter().enumerate() {
            all.push(load_one(path, &file, place, parameter)?);
        }
        let mut history = Vec::with_capacity(all.len() * HISTORY_WORDS);
        for (parameter, loaded) in self.parameters.iter_mut().zip(all) {
            for (moment, elements) in parameter.moments.iter_mut().zip(loaded.moments) {
                moment.write_slice(&elements)?;
            }
            if let (Some(master), Some(elements)) = (&mut parameter.master, loaded.master) {
                master.write_slice(&elements)?;
            }
            history.extend(loaded.history);
        }
        self.history = Tensor::from_slice(&self.device, &history, [self.parameters.len(), HISTORY_WORDS])?;
        if let Some([scale, good]) = scale {
            let mut words = self.status.to_vec()?;
            (words[status::SCALE], words[status::GOOD_STEPS]) = (scale, good);
            self.status.write_slice(&words)?;
        }
        (self.groups, self.seed, self.tables) = (groups, low | high << 32, None);
        Ok(())
    }

    fn load_groups(&self, file: &Weights) -> Result<Vec<AdamWOptions>> {
        let numbers = file.array::<f64>("groups")?;
        if numbers.shape() != [self.groups.len(), OPTIONS] {
            return Err(file.unexpected_shape("groups", format!("shape [{}, {OPTIONS}]", self.groups.len())));
        }
        let numbers = numbers.into_raw_vec_and_offset().0;
        let groups = numbers.chunks_exact(OPTIONS).map(|numbers| {
            let options = AdamWOptions {
                learning_rate: numbers[0],
                betas: [numbers[1], numbers[2]],
                epsilon: numbers[3],
                weight_decay: numbers[4],
                bias_correction: numbers[5] != 0.0,
            };
            options.check("AdamW::load").map(|()| options)
        });
        groups.collect()
    }
}

fn numbers_of(options: &AdamWOptions) -> [f64; OPTIONS] {
    let &AdamWOptions { learning_rate, betas, epsilon, weight_decay, bias_correction } = options;
    let corrects = if bias_correction { 1.0 } else { 0.0 };
    [learning_rate, betas[0], betas[1], epsilon, weight_decay, corrects]
}

/// What the file has of weights, checked.
fn load_one(path: &Path, file: &Weights, place: usize, parameter: &Parameter) -> Result<Loaded> {
    let name = |what: &str| format!("{what}.{}", parameter.name);
    let elements = |what: &str, shape: &[usize]| {
        let array = file.array::<f32>(&name(what))?;
        if array.shape() != shape {
            return Err(file.unexpected_shape(&name(what), format!("shape {shape:?}")));
        }
        Ok(array.into_raw_vec_and_offset().0)
    };
    let is_random =
        parameter.master.is_none() && !matches!(parameter.weights, super::operands::Weights::F32(_));
    let [saved] = of_shape::<u32, 1>(file, &name("place"))?;
    if is_random && saved as usize != place {
        let expected = format!("place {place}, on which random bits depend");
        return Err(unfit(path, &name("place"), &expected, &saved.to_string()));
    }
    let [step] = of_shape::<u32, 1>(file, &name("step"))?;
    let powers = of_shape::<f64, 2>(file, &name("powers"))?;
    if !powers.iter().all(|power| (0.0..=1.0).contains(power)) {
        return Err(unfit(path, &name("powers"), "from 0 to 1", &format!("{powers:?}")));
    }
    let [a, b] = powers.map(f64::to_bits);
    Ok(Loaded {
        moments: [
            elements("first_moment", parameter.moments[0].shape())?,
            elements("second_moment", parameter.moments[1].shape())?,
        ],
        master: parameter.master.as_ref().map(|master| elements("master", master.shape())).transpose()?,
        history: [step, 0, a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32],
    })
}

/// The elements of a tensor of shape `[N]`.
fn of_shape<T: Element, const N: usize>(file: &Weights, name: &str) -> Result<[T; N]> {
    let array = file.array::<T>(name)?;
    let shape = array.shape().to_vec();
    match <[T; N]>::try_from(array.into_raw_vec_and_offset().0) {
        Ok(elements) if shape == [N] => Ok(elements),
        _ => Err(file.unexpected_shape(name, format!("shape [{N}]"))),
    }
}

fn unfit(path: &Path, name: &str, expected: &str, actual: &str) -> Error {
    Error::Weights {
        source_name: path.display().to_string(),
        tensor: name.into(),
        expected: expected.into(),
        actual: format!("it has {actual}"),
    }
}
