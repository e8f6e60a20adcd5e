//! A subscriber's topics: prefixes of the first part of messages.

use bytes::Bytes;

use super::zmtp::ZmtpError;

/// Maximum topics of a peer.
const TOPICS_MAX: usize = 64;

/// The topics of one peer. A topic may be added more than once, and must be removed as often.
#[derive(Debug, Default)]
pub(super) struct Subscriptions(Vec<Bytes>);

impl Subscriptions {
    /// Adds a topic.
    pub(super) fn add(&mut self, topic: Bytes) -> Result<(), ZmtpError> {
        if self.0.len() == TOPICS_MAX {
            return Err(ZmtpError::TooManySubscriptions { limit: TOPICS_MAX });
        }
        self.0.push(topic);
        Ok(())
    }

    /// Removes a topic; removing an absent one is not an error.
    pub(super) fn remove(&mut self, topic: &Bytes) {
        if let Some(at) = self.0.iter().position(|wanted| wanted == topic) {
            self.0.swap_remove(at);
        }
    }

    /// Handles a message by which peers of ZMTP 3.0 subscribe or cancel: 1 or 0, followed by the topic. Other messages
    /// are ignored.
    pub(super) fn take_message(&mut self, parts: &[Bytes]) -> Result<(), ZmtpError> {
        let [part] = parts else { return Ok(()) };
        match part.first() {
            Some(1) => self.add(part.slice(1..)),
            Some(0) => {
                self.remove(&part.slice(1..));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether a message with this first part matches a topic.
    pub(super) fn want(&self, topic: &[u8]) -> bool {
        self.0.iter().any(|wanted| topic.starts_with(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_wanted_until_it_is_taken_back_as_often() {
        let mut subscriptions = Subscriptions::default();
        assert!(!subscriptions.want(b"kv@a"));
        subscriptions.add(Bytes::from_static(b"kv@")).unwrap();
        subscriptions.take_message(&[Bytes::from_static(b"\x01kv@")]).unwrap();
        assert!(subscriptions.want(b"kv@a") && !subscriptions.want(b"kv"));
        subscriptions.remove(&Bytes::from_static(b"kv@"));
        assert!(subscriptions.want(b"kv@a"));
        subscriptions.take_message(&[Bytes::from_static(b"\0kv@")]).unwrap();
        assert!(!subscriptions.want(b"kv@a"));
    }

    #[test]
    fn topics_are_counted() {
        let mut subscriptions = Subscriptions::default();
        for index in 0..TOPICS_MAX {
            subscriptions.add(vec![index as u8].into()).unwrap();
        }
        assert!(subscriptions.add(Bytes::new()).is_err());
        assert!(
            subscriptions.take_message(&[Bytes::new()]).is_ok() && subscriptions.take_message(&[]).is_ok()
        );
    }
}
