//! What the parent tells a role.

use std::collections::HashMap;
use std::sync::Arc;

use fabricast::endpoint::HeaderMode;
use fabricast::{Domain, PeerAddr};

use crate::message::HEADER;
use crate::rows::{self, Row};

/// What a role was told: words of the form name=value.
pub(crate) struct Told(HashMap<String, String>);

impl Told {
    pub(crate) fn new(text: &str) -> Self {
        let words = text.split(' ').filter_map(|word| word.split_once('='));
        let owned = |(k, v): (&str, &str)| (k.to_owned(), v.to_owned());
        Self(words.map(owned).collect())
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(crate) fn number(&self, name: &str, default: u64) -> u64 {
        let parse = |text: &str| text.parse().expect("a number");
        self.text(name).map_or(default, parse)
    }

    pub(crate) fn row(&self) -> &'static Row {
        let row = self.text("row").expect("a row").replace('+', ";");
        rows::row_named(&row)
    }

    pub(crate) fn domain(&self) -> Arc<Domain> {
        rows::open(self.row()).expect("the parent looked")
    }

    /// The peer to connect to.
    pub(crate) fn to(&self) -> PeerAddr {
        let to = self.text("to").expect("a peer");
        to.parse().expect("an address")
    }
}

pub(crate) fn mode(name: &str) -> HeaderMode {
    match name {
        "raw" => HeaderMode::Raw,
        "fixed" => HeaderMode::Fixed(HEADER as u16),
        _ => HeaderMode::Prefixed,
    }
}
