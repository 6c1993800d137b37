//! `Wanted`: what a subscriber wants of one publisher, and what that knows of it. Pure.
//!
//! ```text
//!  subscribe ─► Queued ─► Asked ──granted──► On ── unsubscribe ─► Leaving ─► Left asked ──► gone
//!                 │          └─ refused ─► gone                     ▲
//!                 └ unsubscribe ─► gone      Asked, unsubscribe ────┘ when it is answered
//! ```
//!
//! One request is under way at a time (`protocol/connection/subscriptions.rs`); the others wait in
//! line, each tag once.

use std::collections::VecDeque;

use crate::error::Forked;
use crate::id::IdMap;
use crate::protocol::wire::{SubscriptionAnswer, SubscriptionOutcome, SubscriptionRequest};

/// Why a subscription, or its end, can't be asked for now. Nothing was asked.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// There is no such publisher, or its connection is over for good.
    #[error("there is no such publisher")]
    NoPublisher,
    /// It is subscribed to, or was asked for.
    #[error("the tag is subscribed to, or was asked for")]
    Already,
    /// It was not asked for.
    #[error("the tag is not subscribed to")]
    NotSubscribed,
    /// Its end was asked for, and not confirmed yet.
    #[error("the end of the subscription is under way")]
    Leaving,
    /// As many tags are wanted of this publisher as the setting allows.
    #[error("{limit} tags are wanted of this publisher, as many as may (setting `subscriptions`)")]
    TooMany {
        /// The limit.
        limit: u32,
    },
    /// The endpoint was made by the process that this one was forked from.
    #[error("{0}: open a fabric of its own in the child")]
    Forked(#[from] Forked),
}

fabricast_process::debug_as_words!(SubscribeError);

/// What the application is to hear about a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TagEvent {
    On,
    Off,
    Refused(SubscriptionOutcome),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TagStage {
    /// In line.
    Queued,
    Asked,
    /// Asked for, but wanted no more.
    AskedInVain,
    On,
    /// In line, to be given up.
    Leaving,
    /// The publisher was told.
    LeftAsked,
}

#[derive(Debug, Clone, Copy)]
struct Tag {
    stage: TagStage,
    /// The number of the next publication, once it is known.
    expected: Option<u64>,
}

/// The tags of one publisher.
#[derive(Debug)]
pub(crate) struct Wanted {
    limit: u32,
    /// By what this process asked for; what a publisher says is only looked up.
    tags: IdMap<u64, Tag>,
    line: VecDeque<u64>,
}

impl Wanted {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            limit,
            tags: IdMap::default(),
            line: VecDeque::new(),
        }
    }

    pub(crate) fn subscribe(&mut self, tag: u64) -> Result<(), SubscribeError> {
        match self.tags.get(&tag).map(|tag| tag.stage) {
            Some(TagStage::Queued | TagStage::Asked | TagStage::On) => Err(SubscribeError::Already),
            Some(TagStage::AskedInVain | TagStage::Leaving | TagStage::LeftAsked) => {
                Err(SubscribeError::Leaving)
            }
            None if self.tags.len() >= self.limit as usize => {
                Err(SubscribeError::TooMany { limit: self.limit })
            }
            None => {
                let queued = Tag {
                    stage: TagStage::Queued,
                    expected: None,
                };
                self.tags.insert(tag, queued);
                self.line.push_back(tag);
                Ok(())
            }
        }
    }

    /// Gives a tag up; what the application hears at once.
    pub(crate) fn unsubscribe(&mut self, tag: u64) -> Result<Option<TagEvent>, SubscribeError> {
        let found = self
            .tags
            .get_mut(&tag)
            .ok_or(SubscribeError::NotSubscribed)?;
        match found.stage {
            TagStage::Queued => {
                self.tags.remove(&tag);
                self.line.retain(|other| *other != tag);
                return Ok(Some(TagEvent::Off));
            }
            TagStage::Asked => found.stage = TagStage::AskedInVain,
            TagStage::On => {
                found.stage = TagStage::Leaving;
                self.line.push_back(tag);
            }
            TagStage::AskedInVain | TagStage::Leaving | TagStage::LeftAsked => {
                return Err(SubscribeError::Leaving);
            }
        }
        Ok(None)
    }

    /// The next request, which is under way from now on.
    pub(crate) fn next_request(&mut self) -> Option<SubscriptionRequest> {
        let tag = self.line.pop_front()?;
        let found = self.tags.get_mut(&tag)?;
        let on = found.stage == TagStage::Queued;
        found.stage = if on {
            TagStage::Asked
        } else {
            TagStage::LeftAsked
        };
        Some(SubscriptionRequest { tag, on })
    }

    /// The publisher has answered the request that is under way.
    pub(crate) fn on_answer(
        &mut self,
        request: SubscriptionRequest,
        answer: SubscriptionAnswer,
    ) -> Option<TagEvent> {
        let tag = request.tag;
        let found = self.tags.get_mut(&tag)?;
        let granted = answer.outcome.is_granted();
        match found.stage {
            TagStage::Asked if granted => {
                found.stage = TagStage::On;
                found.expected.get_or_insert(answer.next);
                Some(TagEvent::On)
            }
            TagStage::AskedInVain if granted => {
                found.stage = TagStage::Leaving;
                self.line.push_back(tag);
                None
            }
            TagStage::Asked => {
                self.tags.remove(&tag);
                Some(TagEvent::Refused(answer.outcome))
            }
            TagStage::AskedInVain | TagStage::LeftAsked => {
                self.tags.remove(&tag);
                Some(TagEvent::Off)
            }
            TagStage::Queued | TagStage::On | TagStage::Leaving => None,
        }
    }

    /// The connection is over, and another one will be made: what is wanted is asked for again;
    /// what was being given up is gone.
    pub(crate) fn start_again(&mut self, mut gone: impl FnMut(u64)) {
        self.line.clear();
        self.tags.retain(|&tag, found| {
            let wanted = matches!(
                found.stage,
                TagStage::Queued | TagStage::Asked | TagStage::On
            );
            if wanted {
                (found.stage, found.expected) = (TagStage::Queued, None);
                self.line.push_back(tag);
            } else {
                gone(tag);
            }
            wanted
        });
    }

    /// A publication came: how many of the tag's are missing in front of it. `None`: the tag is not
    /// subscribed to.
    #[inline]
    pub(crate) fn on_publication(&mut self, tag: u64, number: u64) -> Option<u64> {
        let found = self.tags.get_mut(&tag)?;
        if found.stage == TagStage::Queued {
            return None;
        }
        let missed = match found.expected {
            Some(expected) => number.saturating_sub(expected),
            // It has overtaken the answer that would say.
            None => 0,
        };
        found.expected = Some(number.wrapping_add(1));
        Some(missed)
    }

    /// Tags that are subscribed to.
    pub(crate) fn subscribed(&self) -> usize {
        let on = |tag: &&Tag| tag.stage == TagStage::On;
        self.tags.values().filter(on).count()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        On(u64),
        Off(u64),
        Ask,
        Answer,
        Publish(u64),
        Cut,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            5 => (0..6_u64).prop_map(Step::On),
            4 => (0..6_u64).prop_map(Step::Off),
            6 => Just(Step::Ask),
            6 => Just(Step::Answer),
            3 => (0..6_u64).prop_map(Step::Publish),
            1 => Just(Step::Cut),
        ]
    }

    /// A publisher that takes three tags at most, and what the application was told.
    #[derive(Default)]
    struct Model {
        publisher: BTreeSet<u64>,
        under_way: Option<SubscriptionRequest>,
        told: BTreeSet<u64>,
    }

    impl Model {
        fn answer(&mut self, request: SubscriptionRequest) -> SubscriptionAnswer {
            let outcome = if request.on && self.publisher.contains(&request.tag) {
                SubscriptionOutcome::ALREADY
            } else if request.on && self.publisher.len() == 3 {
                SubscriptionOutcome::TOO_MANY_HERE
            } else if request.on {
                self.publisher.insert(request.tag);
                SubscriptionOutcome::DONE
            } else {
                assert!(self.publisher.remove(&request.tag), "off what was on");
                SubscriptionOutcome::DONE
            };
            SubscriptionAnswer {
                tag: request.tag,
                outcome,
                next: 0,
            }
        }

        fn hear(&mut self, tag: u64, event: TagEvent) {
            match event {
                TagEvent::On => assert!(self.told.insert(tag), "on twice"),
                TagEvent::Off | TagEvent::Refused(_) => {
                    self.told.remove(&tag);
                }
            }
        }
    }

    fn step(wanted: &mut Wanted, model: &mut Model, step: Step) {
        match step {
            Step::On(tag) => drop(wanted.subscribe(tag)),
            Step::Off(tag) => {
                if let Ok(Some(event)) = wanted.unsubscribe(tag) {
                    model.hear(tag, event);
                }
            }
            Step::Ask if model.under_way.is_none() => model.under_way = wanted.next_request(),
            Step::Ask => {}
            Step::Answer => {
                if let Some(request) = model.under_way.take() {
                    let answer = model.answer(request);
                    if let Some(event) = wanted.on_answer(request, answer) {
                        model.hear(request.tag, event);
                    }
                }
            }
            Step::Publish(tag) => {
                let known = wanted.on_publication(tag, 0).is_some();
                let sent = model.publisher.contains(&tag);
                assert!(
                    known || !sent,
                    "a publication that was asked for is a stray"
                );
            }
            Step::Cut => {
                model.publisher.clear();
                model.under_way = None;
                wanted.start_again(|tag| {
                    model.told.remove(&tag);
                });
                model.told.clear();
            }
        }
        assert!(
            wanted.line.len() <= wanted.tags.len(),
            "each tag once in line"
        );
        assert!(wanted.tags.len() <= 5);
    }

    proptest! {
        /// Whatever is asked in whatever order: in the end the publisher, the application and this
        /// agree.
        #[test]
        fn all_agree_in_the_end(steps in prop::collection::vec(any_step(), 0..150)) {
            let (mut wanted, mut model) = (Wanted::new(5), Model::default());
            for what in steps {
                step(&mut wanted, &mut model, what);
            }
            for _ in 0..40 {
                step(&mut wanted, &mut model, Step::Ask);
                step(&mut wanted, &mut model, Step::Answer);
            }
            let tags = wanted.tags.iter();
            let on = tags
                .filter(|(_, tag)| tag.stage == TagStage::On)
                .map(|(tag, _)| *tag);
            let on: BTreeSet<_> = on.collect();
            prop_assert_eq!(on.len(), wanted.tags.len(), "nothing is under way");
            prop_assert_eq!(wanted.subscribed(), on.len());
            prop_assert_eq!(&on, &model.publisher);
            prop_assert_eq!(&on, &model.told);
        }
    }

    fn granted(tag: u64, next: u64) -> (SubscriptionRequest, SubscriptionAnswer) {
        let outcome = SubscriptionOutcome::DONE;
        let answer = SubscriptionAnswer { tag, outcome, next };
        (SubscriptionRequest { tag, on: true }, answer)
    }

    #[test]
    fn gaps_are_counted_from_the_answer_on() {
        let mut wanted = Wanted::new(5);
        wanted.subscribe(7).unwrap();
        assert_eq!(wanted.on_publication(7, 3), None, "not asked for yet");
        wanted.next_request();
        let (request, answer) = granted(7, 3);
        assert_eq!(wanted.on_answer(request, answer), Some(TagEvent::On));
        assert_eq!(wanted.on_publication(7, 5), Some(2));
        assert_eq!(wanted.on_publication(7, 6), Some(0));
        assert_eq!(wanted.on_publication(7, 7), Some(0));
        assert_eq!(wanted.on_publication(8, 7), None);
    }

    #[test]
    fn a_publication_may_overtake_the_answer() {
        let mut wanted = Wanted::new(5);
        wanted.subscribe(7).unwrap();
        wanted.next_request();
        assert_eq!(wanted.on_publication(7, 4), Some(0));
        let (request, answer) = granted(7, 4);
        wanted.on_answer(request, answer);
        assert_eq!(wanted.on_publication(7, 5), Some(0));
    }

    #[test]
    fn what_is_refused_says_why() {
        let mut wanted = Wanted::new(1);
        assert_eq!(wanted.unsubscribe(1), Err(SubscribeError::NotSubscribed));
        wanted.subscribe(1).unwrap();
        assert_eq!(wanted.subscribe(1), Err(SubscribeError::Already));
        let full = SubscribeError::TooMany { limit: 1 };
        assert_eq!(wanted.subscribe(2), Err(full));
        wanted.next_request();
        assert_eq!(wanted.unsubscribe(1), Ok(None));
        assert_eq!(wanted.unsubscribe(1), Err(SubscribeError::Leaving));
        assert_eq!(wanted.subscribe(1), Err(SubscribeError::Leaving));
    }
}
