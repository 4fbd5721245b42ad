//! One suite for every device.
fn main() {}
