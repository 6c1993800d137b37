//! `ObjectMemory`: memory that tokens lend.
