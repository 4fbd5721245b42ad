//! What routing gives: the experts of each token and head, and how much each of them counts.

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The experts that tokens use, as product-key retrieval finds them and an expert layer takes them.
///
/// Both tensors are `[.., H, k]`: for each token and head k experts, best first.
#[derive(Clone, Debug)]
pub struct Routing {
    /// Which experts: for n sub-keys a half, expert `i · n + j` is that of sub-keys `i` and `j`.
    pub ids: Tensor<u32>,
    /// What each expert's output is multiplied with.
    pub gates: Tensor<f32>,
}

impl Routing {
    /// Checks that ids and gates belong together, for an operation of that name, and gives their numbers of tokens, heads and experts a head.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] if they differ in shape or have less than two axes, [`Error::DeviceMismatch`] if they are on different devices.
    pub fn sizes(&self, operation: &'static str) -> Result<[usize; 3]> {
        let &[ref tokens @ .., heads, k] = self.ids.shape() else {
            return Err(Error::Shape {
                operation,
                operand: "ids",
                expected: "[.., H, k], at least two axes".into(),
                actual: self.ids.shape().to_vec(),
            });
        };
        if self.gates.shape() != self.ids.shape() {
            return Err(Error::Shape {
                operation,
                operand: "gates",
                expected: format!("{:?}, as ids has", self.ids.shape()),
                actual: self.gates.shape().to_vec(),
            });
        }
        self.ids.device().expect_same(operation, "gates", self.gates.device())?;
        Ok([tokens.iter().product(), heads, k])
    }
}

#[cfg(test)]
mod tests {
    use super::Routing;
    use crate::{Device, Error, Tensor};

    #[test]
    fn ids_and_gates_of_different_shapes_or_devices_are_refused() {
        let device = Device::cpu();
        let ids = Tensor::zeros(&device, [2, 3, 8, 16]).unwrap();
        let routing = |gates| Routing { ids: ids.clone(), gates };
        let sizes = routing(Tensor::zeros(&device, [2, 3, 8, 16]).unwrap()).sizes("test").unwrap();
        assert_eq!(sizes, [6, 8, 16]);
        let other = routing(Tensor::zeros(&device, [6, 8, 16]).unwrap()).sizes("test");
        assert!(matches!(other, Err(Error::Shape { operand: "gates", .. })));
        let elsewhere = routing(Tensor::zeros(&Device::emulator(), [2, 3, 8, 16]).unwrap()).sizes("test");
        assert!(matches!(elsewhere, Err(Error::DeviceMismatch { .. })));
        let flat =
            Routing { ids: ids.reshape([768]).unwrap(), gates: Tensor::zeros(&device, [768]).unwrap() };
        assert!(matches!(flat.sizes("test"), Err(Error::Shape { operand: "ids", .. })));
    }
}
