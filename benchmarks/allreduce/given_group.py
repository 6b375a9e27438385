"""hivemind's averager without matchmaking: the group comes with each step, so that only its all-reduce is timed."""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import Any, AsyncIterator  # noqa: UP035 - hivemind looks for this spelling at run time

from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.group_info import GroupInfo
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import achain, as_aiter

SLACK_SECONDS = 20.0  # for a faster peer's first message


class GivenGroupAverager(DecentralizedAverager):  # type: ignore[misc]
    async def _step(self, *, step: Any, future_for_init: Any) -> None:
        _, _, user = self.serializer.loads(step.data_for_gather)
        given = self.serializer.loads(user)
        peers = tuple(PeerID.from_base58(peer) for peer in given["peers"])
        group_id = hashlib.sha256(repr((given["round"], given["peers"])).encode()).digest()[:20]
        nothing = self.serializer.dumps([None, 0, self.serializer.dumps(None)])
        group = GroupInfo(group_id, peers, tuple(nothing for _ in peers))

        async def look_for_group(_step: Any) -> GroupInfo:
            return group

        self._matchmaking.look_for_group = look_for_group
        await super()._step(step=step, future_for_init=future_for_init)

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        request = await anext(stream)
        deadline = time.monotonic() + SLACK_SECONDS
        while request.group_id not in self._running_groups and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        async for message in super().rpc_aggregate_part(achain(as_aiter(request), stream), context):
            yield message
