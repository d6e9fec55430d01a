// The login of a cluster that has a token.

import { byId, setText, show } from "./dom.js";

const HEADERS = { "X-Trunkline-Dashboard": "1", "Content-Type": "application/json" };

/** Whether this browser needs no login. An unreachable server does not need one. */
export async function hasAccess() {
  try {
    return (await (await fetch("/api/session")).json()).open !== false;
  } catch {
    return true;
  }
}

/** Ask for the token until it is right. */
export function askToken() {
  show(byId("login"), true);
  show(byId("all"), false);
  setText(byId("health-words"), "log in");
  byId("login-token").focus();
  return new Promise((resolve) => {
    byId("login").onsubmit = async (event) => {
      event.preventDefault();
      if (await isRight(byId("login-token").value)) {
        byId("login-token").value = "";
        show(byId("login"), false);
        show(byId("all"), true);
        resolve();
      }
    };
  });
}

async function isRight(token) {
  setText(byId("login-said"), "");
  byId("login-button").disabled = true;
  try {
    const answer = await fetch("/api/login", { method: "POST", headers: HEADERS, body: JSON.stringify({ token }) });
    if (!answer.ok) setText(byId("login-said"), (await answer.json()).message);
    return answer.ok;
  } catch {
    setText(byId("login-said"), "the server of the dashboard does not answer; try again");
    return false;
  } finally {
    byId("login-button").disabled = false;
  }
}
