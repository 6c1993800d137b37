//! `Access`: what a peer may do with memory that is exposed to it.

use std::fmt;

bitflags::bitflags! {
    /// What a peer may do with a window. Ask for no more than it needs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The peer may read (`FI_REMOTE_READ`).
        const READ = 1;
        /// The peer may write (`FI_REMOTE_WRITE`).
        const WRITE = 2;
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            match (self.contains(Self::READ), self.contains(Self::WRITE)) {
                (true, true) => "read and write",
                (true, false) => "read",
                (false, true) => "write",
                (false, false) => "nothing",
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_told_in_words() {
        let told =
            [Access::empty(), Access::READ, Access::WRITE, Access::all()].map(|a| a.to_string());
        assert_eq!(told, ["nothing", "read", "write", "read and write"]);
    }
}
