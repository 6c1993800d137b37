//! `ObjectStore`: where objects lie.
