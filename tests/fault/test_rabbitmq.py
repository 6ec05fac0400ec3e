"""RabbitMQ in front of a relay, with every kind of fault: the suite common to all brokers (broker_faults.py), and RabbitMQ's
own. One node for all cases; test_rabbitmq_cluster.py has three."""
# build: plain
# quick: no
import time
import unittest

import broker_faults
from brokers import RabbitmqBroker
from support import Case, wait_until


def setUpModule():
    global broker
    broker = RabbitmqBroker()
    unittest.addModuleCleanup(broker.close)


class RabbitmqCase(broker_faults.BrokerCase):
    """Its queue is a classic one (see RabbitmqBroker) where the broker may be killed."""

    def make_broker(self):
        return broker

    @property
    def rabbit(self):
        return broker.server


class Crashes(broker_faults.Crashes, RabbitmqCase, Case):
    pass


class OnQuorumQueues(RabbitmqCase):
    def setUp(self):
        super().setUp()
        self.broker.make(self.name, x_queue_type="quorum")


class Faults(broker_faults.Faults, broker_faults.Full, OnQuorumQueues, Case):
    pass


class Outages(OnQuorumQueues, Case):
    """Whatever the broker refuses: everything arrives, in order, and no attempt is counted against an event."""

    def alarmed(self, alarm, words):
        """alarmed has the broker block publishers for a while."""
        with self.start("--timeout", "2s") as relay:
            self.send(50)
            self.wait_all(relay)
            alarm(True)
            self.addCleanup(alarm, False)
            self.send(500)
            self.down(relay, words)
            alarm(False)
            self.fault("alarm")
            self.arrived(relay)
        self.reckon(1)

    def test_memory_alarm_is_reported_and_loses_nothing(self):
        """A broker that is low on memory gets everything, in order, once it has memory again; the relay says why it waits."""
        self.alarmed(self.rabbit.alarm, "is blocking publishers: low on memory")

    def test_disk_alarm_is_reported_and_loses_nothing(self):
        """The same with a broker whose disk is almost full."""
        self.alarmed(self.rabbit.disk_alarm, "is blocking publishers: low on disk")

    def test_recreated_exchange_gets_every_event(self):
        """A missing exchange uses up attempts of its events only; once it is back, everything arrives."""
        with self.start() as relay:
            self.send(50)
            self.wait_all(relay)
            with self.rabbit.channel() as ch: ch.exchange_delete(self.name)
            self.send(50)
            self.refused(relay, f"no exchange '{self.name}'")
            self.rabbit.declare(self.name, self.name)
            self.fault("exchange deleted")
            self.heal(relay)
        self.assertEqual(self.ask("SELECT count(*) FROM @dead"), [(0,)])
        self.reckon(1)

    def test_idle_relay_keeps_its_connection(self):
        """An idle relay answers heartbeats, so that its connection is ready for the next event."""
        with self.start(url=self.url("heartbeat=1s")) as relay:
            self.send(1)
            self.wait_all(relay)
            before = self.rabbit.eval("[rabbit_misc:pid_to_string(P) || P <- rabbit_networking:connections()].")
            time.sleep(4)
            self.assertEqual(self.rabbit.eval("[rabbit_misc:pid_to_string(P) || P <- rabbit_networking:connections()]."), before)
            self.send(1)
            self.wait_all(relay)
