//! Rows: what the store keeps about the tree, as keys and values of bytes.
//!
//! [`key`] says what is kept and under which key, [`value`] how values are written, [`chunk`] is the map from a file's blocks to
//! where they lie. Where rows live is the business of `store`, which version of one is seen that of `state`.

pub(crate) mod chunk;
pub(crate) mod key;
pub(crate) mod value;
