//! Tests of the table of clients.
