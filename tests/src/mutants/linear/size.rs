//! A problem's size, and what else selects a path.

/// Whether there is a scale for each row or column, one for all, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    None,
    One,
    Each,
}

/// The activations that the epilogue knows. Each has a way of its own by which boxes are stored, with accesses of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    None,
    Relu,
    Silu,
    GeluTanh,
    GeluErf,
}

/// What the epilogue does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fused {
    pub(super) alpha: f32,
    pub(super) bias: bool,
    pub(super) row_scale: Scales,
    pub(super) column_scale: Scales,
    pub(super) residual: bool,
    pub(super) mask: bool,
    pub(super) preactivation: bool,
    pub(super) function: Function,
}

/// A bias at most.
pub(super) const PLAIN: Fused = Fused {
    alpha: 1.0,
    bias: true,
    row_scale: Scales::None,
    column_scale: Scales::None,
    residual: false,
    mask: false,
    preactivation: false,
    function: Function::None,
};

/// All that there is.
pub(super) const FULL: Fused = Fused {
    alpha: 0.5,
    bias: true,
    row_scale: Scales::Each,
    column_scale: Scales::Each,
    residual: true,
    mask: true,
    preactivation: true,
    function: Function::Relu,
};

/// A problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) batch: u32,
    pub(super) m: u32,
    pub(super) k: u32,
    pub(super) n: u32,
    pub(super) fused: Fused,
    /// Elements of y, of the residual and of the preactivation before their first.
    pub(super) skip: u32,
    /// Elements of y between its rows; the residual and the preactivation have as many.
    pub(super) pad: u32,
    /// Whether the lanes store boxes of y where they can, and not the copy engine.
    pub(super) by_lanes: bool,
    /// Whether X and W are contiguous along their rows' index instead of K.
    pub(super) mn: [bool; 2],
    /// Whether all matrices of the batch have the same X, the same W.
    pub(super) shared: [bool; 2],
    /// Whether X and W are of the second of the types that a kernel chooses from at its launch.
    pub(super) second_type: [bool; 2],
    /// What the rows of X and of W start at multiples of, in bytes, and of nothing larger.
    pub(super) words: [u32; 2],
    /// Clusters of a persistent launch; 0 where every tile has its own.
    pub(super) clusters: u32,
    /// Groups of tiles that are whole, where others are in halves, and whether the last column of tiles is narrow: 1, or 0.
    pub(super) halves: [u32; 2],
    /// Blocks that share the sums of a tile of a portable kernel.
    pub(super) parts: u32,
    /// Parts of the sums along K, each of which is a matrix of y, of a persistent kernel.
    pub(super) split: u32,
    /// The ranks of two updates of the product.
    pub(super) ranks: [u32; 2],
    /// Rows of X that share a row of each one's codes.
    pub(super) code_rows: [u32; 2],
    /// Tiles of y that a block of a kernel with updates computes.
    pub(super) row_tiles: u32,
    /// Whether tiles of a kernel with updates exchange what they have computed of X V.
    pub(super) exchanged: bool,
    /// Whether X, W and U have infinities.
    pub(super) infinite: bool,
}

/// With a bias and ReLU, and y aligned for stores of four elements.
pub(super) const fn size(m: u32, k: u32, n: u32) -> Size {
    Size {
        batch: 1,
        m,
        k,
        n,
        fused: Fused { function: Function::Relu, ..PLAIN },
        skip: 0,
        pad: 8 - n % 4,
        by_lanes: false,
        mn: [false; 2],
        shared: [false; 2],
        second_type: [false; 2],
        words: [16; 2],
        clusters: 0,
        halves: [u32::MAX, 0],
        parts: 1,
        split: 1,
        ranks: [0; 2],
        code_rows: [1; 2],
        row_tiles: 1,
        exchanged: false,
        infinite: false,
    }
}

/// With a bias, and y aligned for stores of four elements.
pub(super) const fn plain(m: u32, k: u32, n: u32) -> Size {
    Size { fused: PLAIN, ..size(m, k, n) }
}

impl Size {
    pub(super) const fn fused(self, fused: Fused) -> Self {
        Self { fused, ..self }
    }

    /// Rows of y aligned for the copy engine: padded to whole chunks.
    pub(super) const fn boxed(self, pad: u32) -> Self {
        Self { pad, ..self }
    }

    pub(super) const fn by_lanes(self) -> Self {
        Self { by_lanes: true, ..self }
    }

    /// y, the residual and the preactivation such that four elements are not aligned.
    pub(super) const fn odd(self) -> Self {
        Self { skip: 1, pad: 1, ..self }
    }

    pub(super) const fn words(self, words: [u32; 2]) -> Self {
        Self { words, ..self }
    }

    pub(super) const fn clusters(self, clusters: u32) -> Self {
        Self { clusters, ..self }
    }

    /// With the tiles after the first `whole` groups in halves, and of those of the last column only the first if `narrow` is 1.
    pub(super) const fn halved(self, whole: u32, narrow: u32) -> Self {
        Self { halves: [whole, narrow], ..self }
    }

    /// With so many blocks for each tile.
    pub(super) const fn parts(self, parts: u32) -> Self {
        Self { parts, ..self }
    }

    /// With so many parts of each sum.
    pub(super) const fn split(self, split: u32) -> Self {
        Self { split, ..self }
    }

    /// Elements along K of each part of a sum, where a step has `step`.
    pub(super) const fn part(&self, step: u32) -> u32 {
        if self.split > 1 { self.k.div_ceil(step).div_ceil(self.split) * step } else { self.k }
    }

    pub(super) const fn batch(self, batch: u32, shared: [bool; 2]) -> Self {
        Self { batch, shared, ..self }
    }

    pub(super) const fn mn(self, x: bool, w: bool) -> Self {
        Self { mn: [x, w], ..self }
    }

    pub(super) const fn second_type(self, x: bool, w: bool) -> Self {
        Self { second_type: [x, w], ..self }
    }

    /// With two updates, whose codes each serve so many rows of X.
    pub(super) const fn updated(self, ranks: [u32; 2], code_rows: [u32; 2]) -> Self {
        Self { ranks, code_rows, ..self }
    }

    pub(super) const fn row_tiles(self, row_tiles: u32) -> Self {
        Self { row_tiles, ..self }
    }

    pub(super) const fn exchanged(self) -> Self {
        Self { exchanged: true, ..self }
    }

    /// With infinities in X, W and U.
    pub(super) const fn infinite(self) -> Self {
        Self { infinite: true, ..self }
    }

    /// With two updates of at most eight ranks together, if there is one product, of some columns of X.
    pub(super) fn narrowly_updated(self) -> Option<Self> {
        let ranks = [1 + self.m % 5, self.n % 4];
        (self.batch == 1 && self.k > 0).then(|| self.updated(ranks, [1, 3]))
    }

    /// Whether the copy engine can store y, whose elements have `bytes` bytes, and what else is asked of the epilogue than a bias and the
    /// function goes the same way: nothing, unless `passes_boxes`.
    pub(super) fn fits_boxes(&self, bytes: u32, passes_boxes: bool) -> bool {
        let Fused { row_scale, column_scale, residual, mask, preactivation, .. } = self.fused;
        let aligned =
            [self.skip, self.n, self.n + self.pad].iter().all(|length| (length * bytes).is_multiple_of(16));
        let scaled = row_scale != Scales::None || column_scale != Scales::None;
        aligned && (passes_boxes || !(scaled || residual || mask || preactivation))
    }

    /// What it costs to run, more or less: steps along K of whole tiles, and elements that the epilogue works on.
    pub(super) const fn cost(&self, tile: [u32; 2], step: u32) -> u32 {
        let tiles = self.batch * self.split * self.m.div_ceil(tile[0]) * self.n.div_ceil(tile[1]);
        let elements = self.batch * self.m * self.n / if self.fused.residual { 512 } else { 2048 };
        tiles * (self.k.div_ceil(step) + 4) * 16 + elements
    }
}
