//! Stand-in.
/// Stand-in.
#[derive(Debug, Clone)]
pub struct ThreadPool(());
