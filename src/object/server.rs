//! `ObjectServer`: moves bytes into and out of what tokens name.
