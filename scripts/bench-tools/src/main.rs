//! Generators and baselines for `scripts/bench`.
fn main() {}
