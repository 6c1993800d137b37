//! Stand-in for the settings.
pub(crate) struct Defaults;
pub(crate) struct Settings {
    pub(crate) task_size: usize,
    pub(crate) bounce_buffer_size: usize,
    pub(crate) bounce_pool_size: usize,
    pub(crate) auto_direct_io_read: bool,
    pub(crate) auto_direct_io_write: bool,
    pub(crate) auto_direct_io_threshold: usize,
}
impl Defaults {
    pub(crate) fn get() -> Settings {
        Settings {
            task_size: 4 << 20,
            bounce_buffer_size: 16 << 20,
            bounce_pool_size: 256 << 20,
            auto_direct_io_read: false,
            auto_direct_io_write: true,
            auto_direct_io_threshold: 64 << 10,
        }
    }
}
pub(crate) fn global() -> Option<super::ThreadPool> {
    static POOL: std::sync::OnceLock<Option<super::ThreadPool>> = std::sync::OnceLock::new();
    POOL.get_or_init(|| super::ThreadPool::new(8, 4096).ok())
        .clone()
}
