//! PEER: layers of very many small experts, of which each token uses a few.
//!
//! A token's experts are found first, and evaluated then; a [`Routing`] is what goes from the one to the other.

mod routing;

pub use routing::Routing;
