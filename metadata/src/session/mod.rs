//! A session in the store: taking it over, loading its image, flushing its changes.

mod exchange;
mod flush;
mod fold;
mod load;
mod own;

pub use exchange::Exchange;
pub use flush::{Fence, FlushBatch, FlushError, StoredReply, frozen};
pub use fold::fold;
pub use load::{Loaded, load};
pub(crate) use own::REPLIES_MAX;
pub use own::{
    Notice, OwnError, Owned, Taker, empty_image, let_go, session_layers, take_over, tree_of,
};
