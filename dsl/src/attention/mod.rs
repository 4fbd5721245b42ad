//! Attention, `O = softmax(scale · Q Kᵀ + …) V`, of which the scores are never stored.
//!
//! A block works on some rows of Q, of one head of one sequence, and goes over the keys in blocks. Of each row it keeps the largest score so far and
//! the sum of the weights; when a larger one comes, what has been summed up is scaled down.
//!
//! | module | what it is |
//! |---|---|
//! | [`work`] | what the blocks of a launch work on, in which order |
//! | [`window`] | which keys a row attends to by its place alone |
//! | [`scores`] | what happens to scores between the product and the softmax |
//! | [`softmax`] | the softmax of a row whose scores come in parts |
//! | [`hopper`] | the tile of Hopper's kernels: copy engine and `wgmma` |
//! | [`cache`] | new keys and values become those of a cache |
//! | [`gradient`] | the tiles of its gradients |
//! | [`portable`] | the tile of all others, and of few rows: `cp.async` and `mma.sync` |

pub mod cache;
pub mod gradient;
pub mod hopper;
pub mod portable;
pub mod scores;
pub mod softmax;
pub mod window;
pub mod work;
