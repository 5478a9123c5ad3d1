"""A router: the front desk hands each customer over to the agent that can help, which then has the conversation.

    python examples/router.py [--model openai:gpt-5-mini]

A hand-off keeps the session and its history; only who answers changes, and who sends a customer back names the desk.
Every customer is a session and every word has a key: run it again, and nobody is asked, refunded or helped twice.
"""

import argparse
import asyncio

from perdure import Agent, Runtime, tool
from perdure.handoffs import handoff, last_messages
from perdure.ports import ModelRequest
from perdure.testing import ScriptedModel, call

CUSTOMERS = {"ada": "I was billed twice for order 7.", "bob": "My parcel never came."}


@tool(effect="idempotent")
async def refund(order: str) -> str:
    """Give the money for an order back."""
    return f"order {order} is refunded"


@tool(effect="read")
async def track(customer: str) -> str:
    """Where a customer's parcel is."""
    return "it stands at the depot since Monday"


def greet(request: ModelRequest) -> list[object]:
    return [call("hand_off", to="billing" if "billed" in str(request.messages[-1]) else "shipping")]


billing = Agent(
    name="billing",
    instructions="You settle bills and refunds.",
    model=ScriptedModel([[call("refund", order="7")], "Order 7 is refunded; sorry for that."]),
    tools=[refund],
    handoffs=["desk"],
)
shipping = Agent(
    name="shipping",
    instructions="You find parcels.",
    model=ScriptedModel([[call("track", customer="bob")], "Your parcel is at the depot; it comes tomorrow."]),
    tools=[track],
    handoffs=["desk"],
)
desk = Agent(
    name="desk",
    instructions="You greet customers and hand them over to whoever can help.",
    model=ScriptedModel(greet),
    handoffs=[billing, handoff(shipping, filter=last_messages(4))],
)


async def main(store: str, model: str | None) -> None:
    async with Runtime(store, agents=[desk], model=model) as runtime:
        for customer, words in CUSTOMERS.items():
            session = await runtime.open(desk, id=customer)
            result = await session.run(words, key="hello")
            print(f"{customer}: {words}\n  {session.agent}: {result.output}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="A front desk that hands over.")
    options.add_argument("--store", default="sqlite:router.db")
    options.add_argument("--model", help="a real one for all agents, such as openai:gpt-5-mini")
    asyncio.run(main(**vars(options.parse_args())))
