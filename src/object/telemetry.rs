//! `ObjectStats`: what was done, and how long it took.
