//! The store: objects, packs, refs, and keeping them in order.
