//! When an idle entity ends, by tokio's clock. Source: sharding §4.10.

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use super::*;
use crate::Passivation;

/// An entity that reports at its end for how long it was idle.
struct Idler {
    used: Instant,
    told: UnboundedSender<Duration>,
}

impl Entity for Idler {
    type Message = ();

    /// Starts a timer, whose turns do not count as use of the entity.
    fn on_start(&mut self, cx: &mut Ctx<'_, ()>) {
        cx.fixed_rate("tick", Duration::from_millis(700), || ());
    }

    fn receive(&mut self, (): (), _: &mut Ctx<'_, ()>) -> Result<(), Failure> {
        Ok(())
    }

    fn on_signal(&mut self, signal: Signal, _: &mut Ctx<'_, ()>) -> Result<(), Failure> {
        if signal == Signal::PostStop {
            self.told.send(self.used.elapsed()).ok();
        }
        Ok(())
    }
}

/// Idlers that are used once each, a little after one another; returns the receiver of their idle times.
async fn idlers(count: u32, idle: Duration) -> (Sharding, UnboundedReceiver<Duration>) {
    let sharding = alone(ShardingSettings::test()).await;
    let (told, ends) = unbounded_channel();
    let idlers =
        EntityType::new(EntityKey::new("Idler"), move |_| Ok(Idler { used: Instant::now(), told: told.clone() }));
    let region = sharding.init(idlers.passivation(Passivation::idle_after(idle))).unwrap();
    for id in 0..count {
        region.start_entity(id.to_string()).await.unwrap();
        tokio::time::sleep(idle / 97).await;
    }
    (sharding, ends)
}

/// An entity ends after one idle time to 1.1 idle times, for any idle time, and whenever it was used.
#[tokio::test(start_paused = true)]
async fn an_idle_entity_ends_between_one_idle_time_and_a_tenth_more() {
    let default = PassivationSettings::default().chosen().idle_timeout().expect("entities are passivated by default");
    assert_eq!(default, Duration::from_secs(120));
    for idle in [Duration::from_secs(1), Duration::from_secs(60), default] {
        let (_sharding, mut ends) = idlers(90, idle).await;
        for _ in 0..90 {
            let idled = ends.recv().await.expect("each tells its end");
            assert!((idle..=idle.mul_f64(1.1)).contains(&idled), "idle time {idle:?}: it ended after {idled:?}");
        }
        assert!(ends.try_recv().is_err(), "each ends once");
    }
}
