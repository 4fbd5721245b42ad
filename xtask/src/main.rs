//! warpsmith development commands.
fn main() {}
