//! Publish and subscribe: one buffer to all that asked for a tag.

#[cfg_attr(not(test), expect(dead_code, reason = "its user follows"))]
mod account;
#[cfg_attr(not(test), expect(dead_code, reason = "its user follows"))]
mod lane;
mod policy;
#[cfg_attr(not(test), expect(dead_code, reason = "its user follows"))]
mod table;
#[cfg_attr(not(test), expect(dead_code, reason = "its user follows"))]
mod wanted;
