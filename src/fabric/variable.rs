//! `Variable`: what a provider needs of the environment.

/// A variable of the environment that a provider can't be used without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// The value that it must have.
    pub value: &'static str,
    /// libfabric takes that value, too, where the variable is not set: it must only not have
    /// another.
    pub is_default: bool,
    /// What the provider does without it, and what to do about that, in words.
    pub without: &'static str,
}

impl Variable {
    /// Whether it is as it must be, with this value in the environment.
    pub(super) fn is_met_by(&self, value: Option<&str>) -> bool {
        value.map_or(self.is_default, |value| value == self.value)
    }
}
