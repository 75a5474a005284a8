// `oidc-provider`, a certified OpenID provider, with clients and persons for the tests.
//
//     node tests/support/oidc_provider.mjs PORT SOCKET SERVER…
//
// It accepts on the descriptor SOCKET, which listens on PORT. It knows each SERVER (a URL) as a
// resource with the scopes `notes:read` and `notes:write`, and gives JWTs for it; others it refuses,
// as a new installation does all. Persons log in by any name. The programs `reader` and `writer` have
// the secret SECRET, and `reader` may only read.

import Provider, { errors } from 'oidc-provider';

const [port, socket, ...servers] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const program = {
  client_secret: process.env.SECRET,
  grant_types: ['client_credentials'],
  redirect_uris: [],
  response_types: [],
};
const resources = {
  enabled: true,
  useGrantedResource: () => true,
  getResourceServerInfo(_context, resource) {
    if (!servers.includes(resource)) throw new errors.InvalidTarget();
    return {
      scope: 'notes:read notes:write',
      accessTokenFormat: 'jwt',
      accessTokenTTL: 600,
      jwt: { sign: { alg: 'RS256' } },
    };
  },
};

const provider = new Provider(issuer, {
  clients: [
    { ...program, client_id: 'reader', scope: 'notes:read' },
    { ...program, client_id: 'writer', scope: 'notes:read notes:write' },
  ],
  scopes: ['openid', 'offline_access', 'notes:read', 'notes:write'],
  features: {
    devInteractions: { enabled: true },
    clientCredentials: { enabled: true },
    registration: { enabled: true },
    ...(servers.length ? { resourceIndicators: resources } : {}),
  },
});
provider.listen({ fd: Number(socket) });
