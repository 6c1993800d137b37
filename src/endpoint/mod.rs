//! Endpoints: who sends and who receives.

mod id;

pub use id::EndpointId;
