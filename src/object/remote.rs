//! `RemoteObjects`: the client of an `ObjectService`.
