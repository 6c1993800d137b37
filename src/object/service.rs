//! `ObjectService`: serves a store.
