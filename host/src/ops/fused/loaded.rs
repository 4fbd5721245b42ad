//! Kernels that a program has brought.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use warpsmith_dsl::launch::Kernel;

use crate::error::Result;
use crate::kernel::{KernelModule, TypedKernel};

/// The kernels that a program has brought, each looked up when it is first launched.
pub(crate) struct Loaded {
    module: KernelModule,
    typed: Mutex<FxHashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Loaded").field(&self.module.name()).finish()
    }
}

impl Loaded {
    pub(crate) fn new(module: KernelModule) -> Self {
        Self { module, typed: Mutex::default() }
    }

    /// Whether there is the entry of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.module.entries().any(|entry| entry == name)
    }

    /// The kernel `K`.
    pub(crate) fn kernel<K: Kernel>(&self) -> Result<Arc<TypedKernel<K>>> {
        let key = TypeId::of::<K>();
        let found = self.typed.lock().get(&key).cloned();
        if let Some(Ok(kernel)) = found.map(Arc::downcast) {
            return Ok(kernel);
        }
        let kernel = Arc::new(self.module.kernel::<K>()?);
        self.typed.lock().insert(key, kernel.clone());
        Ok(kernel)
    }
}
