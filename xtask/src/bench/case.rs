//! What is measured: an operation, its types, and its sizes.

use std::fmt;
use std::str::FromStr;

use warpsmith::DType;
use warpsmith::ops::{self, Activation};
use warpsmith_lab::cases::{LinearCase, MatmulCase, ScaleKind, ScaledCase, Scales, Terms};

use super::suites::Suite;

/// The inputs' type and how accurately they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Precision {
    Bf16,
    F16,
    /// bf16 inputs, of which the output is f32.
    Bf16ToF32,
    /// f32 inputs rounded to TF32.
    Tf32,
    /// f32 inputs at f32 accuracy.
    F32,
    /// FP8 e4m3 inputs, with a scale for each operand; the output is bf16.
    F8,
    /// The same, but for w, which is e5m2.
    F8Mixed,
}

impl Precision {
    pub(super) const ALL: [Self; 7] =
        [Self::Bf16, Self::F16, Self::Tf32, Self::F32, Self::F8, Self::Bf16ToF32, Self::F8Mixed];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Tf32 => "tf32",
            Self::F32 => "f32",
            Self::F8 => "f8e4m3",
            Self::Bf16ToF32 => "bf16-to-f32",
            Self::F8Mixed => "f8e4m3-by-e5m2",
        }
    }

    /// Whether the inputs have 8 bits.
    pub(super) const fn is_f8(self) -> bool {
        matches!(self, Self::F8 | Self::F8Mixed)
    }

    /// Bytes of an element of the inputs.
    pub(super) const fn input_bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 | Self::Bf16ToF32 => 2,
            Self::Tf32 | Self::F32 => 4,
            Self::F8 | Self::F8Mixed => 1,
        }
    }

    /// Bytes of an element of the bias and the output.
    pub(super) const fn output_bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 | Self::F8 | Self::F8Mixed => 2,
            Self::Tf32 | Self::F32 | Self::Bf16ToF32 => 4,
        }
    }

    /// The types of our products' inputs and of their output; `None` where that is another operation's.
    const fn ours(self) -> Option<[DType; 2]> {
        match self {
            Self::Bf16 => Some([DType::Bf16; 2]),
            Self::Bf16ToF32 => Some([DType::Bf16, DType::F32]),
            Self::F16 => Some([DType::F16; 2]),
            Self::Tf32 | Self::F32 => Some([DType::F32; 2]),
            Self::F8 | Self::F8Mixed => None,
        }
    }

    /// The precision that our operation is asked for.
    pub(super) const fn asked(self) -> ops::Precision {
        match self {
            Self::Tf32 => ops::Precision::Tf32,
            _ => ops::Precision::Full,
        }
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|precision| precision.name() == text);
        found.ok_or_else(|| format!("`{text}` is none of {names}"))
    }
}

/// The layout of the operands: x as M × K or, transposed, as K × M; w as K × N or, transposed, as N × K.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Layout {
    Nn,
    /// That of linear layers.
    Nt,
    Tn,
    Tt,
}

impl Layout {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nn => "nn",
            Self::Nt => "nt",
            Self::Tn => "tn",
            Self::Tt => "tt",
        }
    }

    /// Whether x is transposed.
    pub(super) const fn transposes_x(self) -> bool {
        matches!(self, Self::Tn | Self::Tt)
    }

    /// Whether w is transposed.
    pub(super) const fn transposes_w(self) -> bool {
        matches!(self, Self::Nt | Self::Tt)
    }
}

/// What an operation reads or stores beside x, w, a bias and y.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Extra {
    None,
    /// A matrix of y's type, which is added before the activation.
    Residual,
    /// A number for each row and one for each column, which the product is multiplied with.
    Scales,
    /// A bit for each element of y: whether the activation's argument is above 0.
    Mask,
    /// The activation's argument, in y's type.
    Preactivation,
}

impl Extra {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Residual => "residual",
            Self::Scales => "scales",
            Self::Mask => "mask",
            Self::Preactivation => "preactivation",
        }
    }

    /// Bytes of it beside a y of `m` rows and `n` columns.
    const fn bytes(self, [m, n]: [usize; 2], precision: Precision) -> usize {
        match self {
            Self::None => 0,
            Self::Residual | Self::Preactivation => m * n * precision.output_bytes(),
            Self::Scales => (m + n) * size_of::<f32>(),
            Self::Mask => m * n.div_ceil(32) * size_of::<u32>(),
        }
    }
}

/// A product, and what follows it in the same operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Operation {
    pub(super) layout: Layout,
    pub(super) bias: bool,
    pub(super) activation: Activation,
    pub(super) extra: Extra,
    /// How many there are of each matrix, one behind the other.
    pub(super) batch: usize,
}

impl Operation {
    /// The fused linear layer that everything but the epilogues is measured with.
    pub(super) const BIAS_RELU: Self = Self { bias: true, activation: Activation::Relu, ..Self::PRODUCT };
    /// The product and nothing else.
    pub(super) const PRODUCT: Self = Self::product(Layout::Nt);

    /// The product of operands with these layouts, and nothing else.
    pub(super) const fn product(layout: Layout) -> Self {
        Self { layout, bias: false, activation: Activation::None, extra: Extra::None, batch: 1 }
    }

    /// Its product and nothing else.
    pub(super) const fn its_product(self) -> Self {
        Self { batch: self.batch, ..Self::product(self.layout) }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layout {
            Layout::Nt if self.batch == 1 => formatter.write_str("linear")?,
            other => write!(formatter, "matmul {}", other.name())?,
        }
        if self.bias {
            formatter.write_str(" bias")?;
        }
        if self.activation != Activation::None {
            write!(formatter, " {}", self.activation)?;
        }
        if self.extra != Extra::None {
            write!(formatter, " {}", self.extra.name())?;
        }
        Ok(())
    }
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) suite: Suite,
    pub(super) operation: Operation,
    pub(super) precision: Precision,
    /// M, K, N.
    pub(super) shape: [usize; 3],
}

/// A case as the operation of ours that computes it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tunable {
    /// A linear layer or another product.
    Product(MatmulCase),
    /// A linear layer of 8-bit operands.
    Scaled(ScaledCase),
}

impl Case {
    /// The same with all that the choice of its kernel depends on; `None` where no operation of ours computes it.
    pub(super) fn tunable(&self) -> Option<Tunable> {
        let [m, k, n] = self.shape;
        let Operation { layout, bias, activation, extra, batch } = self.operation;
        let each = Terms { row_scale: Scales::Each, column_scale: Scales::Each, ..Terms::default() };
        let terms = match extra {
            Extra::None => Terms::default(),
            Extra::Residual => Terms { beta: 1.0, ..Terms::default() },
            // An 8-bit operand's are its own.
            Extra::Scales => {
                if self.precision.is_f8() {
                    Terms::default()
                } else {
                    each
                }
            }
            Extra::Mask => Terms { mask: true, ..Terms::default() },
            Extra::Preactivation => Terms { preactivation: true, ..Terms::default() },
        };
        let across = [layout.transposes_x(), !layout.transposes_w()];
        let Some([input, output]) = self.precision.ours() else {
            let scale = if extra == Extra::Scales { ScaleKind::Rows } else { ScaleKind::Device };
            let w_type = if self.precision == Precision::F8Mixed { DType::F8E5M2 } else { DType::F8E4M3 };
            let scaled = ScaledCase {
                w_type,
                x_scale: scale,
                w_scale: scale,
                terms,
                bias,
                activation,
                across,
                ..ScaledCase::new(m, k, n)
            };
            return (batch == 1).then_some(Tunable::Scaled(scaled));
        };
        let precision = self.precision.asked();
        let product =
            LinearCase { output, bias, activation, terms, precision, ..LinearCase::new(input, m, k, n) };
        Some(Tunable::Product(MatmulCase { batch: [batch; 2], across, ..MatmulCase::new(product) }))
    }

    /// The same as a linear layer of one type; `None` where it is none, or one that does more.
    pub(super) fn ours(&self) -> Option<LinearCase> {
        self.without_extra().filter(|_| self.operation.extra == Extra::None)
    }

    /// Whether it is a linear layer of 8-bit operands that has nothing but scales, a bias and an activation.
    pub(super) fn is_plain_scaled(&self) -> bool {
        let Operation { layout, batch, extra, .. } = self.operation;
        self.precision.is_f8()
            && layout == Layout::Nt
            && batch == 1
            && matches!(extra, Extra::None | Extra::Scales)
    }

    /// The linear layer of one type that this one is, whatever else it reads or stores; `None` where it is none.
    pub(super) fn without_extra(&self) -> Option<LinearCase> {
        let [m, k, n] = self.shape;
        let Operation { layout, bias, activation, batch, .. } = self.operation;
        if layout != Layout::Nt || batch != 1 {
            return None;
        }
        let precision = self.precision.asked();
        let case = |[input, output]: [DType; 2]| LinearCase {
            output,
            bias,
            activation,
            precision,
            ..LinearCase::new(input, m, k, n)
        };
        self.precision.ours().map(case)
    }

    /// The types of the operands and of the result, if it is a product or a batch of them in a layout that is no linear layer's.
    pub(super) fn product(&self) -> Option<[DType; 2]> {
        let is_product =
            self.operation == self.operation.its_product() && self.operation.extra == Extra::None;
        let types = self.precision.ours().filter(|[input, output]| input == output);
        types.filter(|_| is_product && self.without_extra().is_none())
    }

    /// M, K, N with `by` between them, behind the number of matrices if there are several.
    pub(super) fn sides(&self, by: &str) -> String {
        let batch = Some(self.operation.batch).filter(|&batch| batch != 1);
        let sides: Vec<_> = batch.into_iter().chain(self.shape).map(|side| side.to_string()).collect();
        sides.join(by)
    }

    /// Floating-point operations: 2 · M · N · K for each matrix.
    pub(super) fn flops(&self) -> f64 {
        let sides = self.shape.iter().map(|&side| side as f64);
        2.0 * self.operation.batch as f64 * sides.product::<f64>()
    }

    /// Bytes that must be read and written.
    pub(super) fn bytes(&self) -> f64 {
        let [m, k, n] = self.shape;
        let batch = self.operation.batch;
        let bias = if self.operation.bias { n } else { 0 };
        let extra = self.operation.extra.bytes([batch * m, n], self.precision);
        let inputs = batch * (m * k + n * k) * self.precision.input_bytes();
        (inputs + (batch * m * n + bias) * self.precision.output_bytes() + extra) as f64
    }
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} {}", self.operation, self.precision.name(), self.sides("×"))
    }
}

/// M, K, N from `MxKxN`.
pub(super) fn parse_shape(text: &str) -> Result<[usize; 3], String> {
    let sides: Result<Vec<usize>, _> = text.split(['x', '×']).map(str::parse).collect();
    let sides = sides.map_err(|error| format!("`{text}`: {error}"))?;
    sides
        .try_into()
        .ok()
        .filter(|sides: &[usize; 3]| sides.iter().all(|&side| side > 0))
        .ok_or_else(|| format!("`{text}` is not of the form MxKxN, three sides above 0"))
}

#[cfg(test)]
mod tests {
    use super::{Case, Extra, Operation, Precision, Suite, parse_shape};

    #[test]
    fn shapes_are_read_in_the_order_they_are_printed() {
        assert_eq!(parse_shape("1024x784x2048"), Ok([1024, 784, 2048]));
        assert!(parse_shape("1024x784").is_err() && parse_shape("axbxc").is_err());
        assert!(parse_shape("0x1x1").is_err());
    }

    #[test]
    fn amounts_are_those_of_the_operation_with_its_bias() {
        let case = |precision| Case {
            suite: Suite::Main,
            operation: Operation::BIAS_RELU,
            precision,
            shape: [2, 3, 5],
        };
        assert_eq!(case(Precision::Bf16).flops(), 60.0);
        assert_eq!(case(Precision::Bf16).bytes(), 2.0 * (6.0 + 15.0 + 10.0 + 5.0));
        assert_eq!(case(Precision::F8).bytes(), 6.0 + 15.0 + 2.0 * (10.0 + 5.0));
    }

    #[test]
    fn what_is_read_or_stored_besides_counts() {
        let bytes = |extra| {
            let operation = Operation { extra, ..Operation::PRODUCT };
            let case = Case { suite: Suite::Main, operation, precision: Precision::Bf16, shape: [2, 3, 40] };
            assert_eq!(case.ours().is_some(), extra == Extra::None);
            case.bytes() - 2.0 * (6.0 + 120.0 + 80.0)
        };
        assert_eq!((bytes(Extra::None), bytes(Extra::Residual)), (0.0, 160.0));
        assert_eq!((bytes(Extra::Scales), bytes(Extra::Mask)), (4.0 * 42.0, 4.0 * 4.0));
        assert_eq!(bytes(Extra::Preactivation), 160.0);
    }

    #[test]
    fn each_matrix_of_a_batch_counts_and_the_sizes_say_how_many_there_are() {
        let of = |batch, precision| {
            let operation = Operation { batch, ..Operation::PRODUCT };
            Case { suite: Suite::Batch, operation, precision, shape: [2, 3, 5] }
        };
        let (one, many) = (of(1, Precision::Bf16), of(7, Precision::Bf16));
        assert_eq!([many.flops(), many.bytes()], [7.0 * one.flops(), 7.0 * one.bytes()]);
        assert_eq!([one.sides("x"), many.sides("x")], ["2x3x5", "7x2x3x5"]);
        assert_eq!([one.to_string(), many.to_string()], ["linear bf16 2×3×5", "matmul nt bf16 7×2×3×5"]);
        assert!(one.ours().is_some() && many.ours().is_none());
        assert_eq!(of(1, Precision::Bf16ToF32).bytes(), one.bytes() + 2.0 * 10.0);
        assert_eq!(of(1, Precision::F8Mixed).bytes(), 6.0 + 15.0 + 2.0 * 10.0);
    }

    #[test]
    fn every_type_is_found_by_its_name() {
        for precision in Precision::ALL {
            assert_eq!(precision.name().parse(), Ok(precision));
        }
        assert!("f64".parse::<Precision>().is_err());
    }
}
