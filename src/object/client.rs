//! `ObjectClient`: lends memory by tokens and calls the application back.
