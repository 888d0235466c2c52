//! temp
#![allow(missing_docs)]
use crate::image::InodeNumbers;
use crate::record::workspace::*;
use base::*;
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("x")]
    NotFound { what: String },
    #[error("x")]
    Corrupt { what: String, why: String },
    #[error("x")]
    Unavailable(String),
    #[error("x")]
    Other,
}
#[derive(Debug, Clone)]
pub struct Store;
impl Store {
    pub async fn handle_keys(&self) -> Result<HandleKeysRecord, StoreError> {
        Err(StoreError::Other)
    }
    pub async fn allocate_inodes(&self, _: WorkspaceId) -> Result<InodeNumbers, StoreError> {
        Err(StoreError::Other)
    }
    pub async fn resolve_ticket(&self, _: &str) -> Result<TicketRecord, StoreError> {
        Err(StoreError::Other)
    }
}
