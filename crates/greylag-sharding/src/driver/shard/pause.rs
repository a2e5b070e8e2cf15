//! Whether the handlers of a shard may run, and what waits for that.
//!
//! No handler runs while the region holds its shards, nor while this node's tick is not recent (cluster F9). Orders that
//! cannot wait are carried out nevertheless; all other control items wait, in their order.

use std::collections::VecDeque;

use crate::driver::shard::control_item::Control;

/// See the module's description.
pub(in crate::driver) struct Pause<M> {
    is_held: bool,
    /// Whether this node's tick was recent after the last batch was taken (cluster F9).
    is_awake: bool,
    /// Control items that came while no handler may run.
    postponed: VecDeque<Control<M>>,
}

impl<M> Pause<M> {
    /// Handlers may run.
    pub(in crate::driver) fn new() -> Self {
        Self { is_held: false, is_awake: true, postponed: VecDeque::new() }
    }

    /// Whether handlers may run at all.
    pub(in crate::driver) fn may_run(&self) -> bool {
        self.is_awake && !self.is_held
    }

    /// Whether the region holds its shards.
    pub(in crate::driver) fn is_held(&self) -> bool {
        self.is_held
    }

    /// Whether this node's tick was recent.
    pub(in crate::driver) fn is_awake(&self) -> bool {
        self.is_awake
    }

    /// The region holds its shards, or does so no more.
    pub(in crate::driver) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Notes whether this node's tick is recent. Returns whether it is again, after it was not.
    pub(in crate::driver) fn on_tick_seen(&mut self, is_awake: bool) -> bool {
        let slept = !std::mem::replace(&mut self.is_awake, is_awake);
        slept && is_awake
    }

    /// Returns the item if it may be carried out now, and postpones it otherwise.
    pub(in crate::driver) fn admit(&mut self, control: Control<M>) -> Option<Control<M>> {
        let at_once = matches!(
            control,
            Control::Kill | Control::LeaseLost(_) | Control::Hold | Control::Release | Control::Count(..)
        );
        if self.may_run() || at_once {
            return Some(control);
        }
        self.postponed.push_back(control);
        None
    }

    /// Whether postponed items may be carried out now.
    pub(in crate::driver) fn is_over(&self) -> bool {
        self.may_run() && !self.postponed.is_empty()
    }

    /// The postponed items, to be added to by what takes items in the shard's stead.
    pub(in crate::driver) fn postponed(&mut self) -> &mut VecDeque<Control<M>> {
        &mut self.postponed
    }

    /// Takes the postponed items out.
    pub(in crate::driver) fn take(&mut self) -> VecDeque<Control<M>> {
        std::mem::take(&mut self.postponed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_wait_while_no_handler_may_run_and_orders_to_end_do_not() {
        let mut pause = Pause::<()>::new();
        assert!(pause.may_run() && pause.admit(Control::Stop).is_some());
        pause.hold(true);
        assert!(pause.admit(Control::Stop).is_none() && pause.admit(Control::Kill).is_some());
        assert!(!pause.is_over());
        assert!(!pause.on_tick_seen(false));
        pause.hold(false);
        assert!(!pause.may_run(), "the tick is old");
        assert!(pause.on_tick_seen(true) && pause.is_over());
        assert_eq!(pause.take().len(), 1);
        assert!(!pause.on_tick_seen(true) && !pause.is_over());
    }
}
